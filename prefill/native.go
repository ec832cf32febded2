package prefill

import (
	"context"
	"strconv"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

const pathChat = "/v1/chat/completions"

// native is how an engine takes a prompt of token ids. Such a warm-up ends on a block's
// edge: an engine stores every whole block of a prompt, and the token that it generates is
// computed by nobody. One that decodes with drafts pairs each token with the next, so it
// gets what lies behind the edge, too. Ids do not hang on the engine's template.
type native struct {
	path    string
	ids     string          // field of the token ids
	only    string          // what makes it a prefill: members behind the ids
	drafts  string          // the same where the engine decodes with drafts
	rank    string          // field of the data-parallel rank, "" where the header tells
	carried map[string]bool // fields of the client's body that pass
	tokens  bool            // reuse is by token: what lies behind the edge is of use
}

var natives = map[string]*native{
	"vllm": {
		path: "/v1/completions", ids: "prompt", only: `"max_tokens":1,"temperature":0,"stream":false`,
		carried: set("model", "cache_salt", "session_id", "vllm_xargs"),
	},
	// SGLang stores the prompt of a request that generates nothing, but a draft model needs
	// a step. Its chat combines salt and extra key in a way of its own, so those stay chats.
	"sglang": {
		path: "/generate", ids: "input_ids", only: `"sampling_params":{"max_new_tokens":0,"temperature":0},"stream":false`,
		drafts: `"sampling_params":{"max_new_tokens":1,"temperature":0},"stream":false`,
		rank:   "routed_dp_rank", carried: set("model", "lora_path", "session_id"),
	},
	"llamacpp": {
		path: "/completion", ids: "prompt", only: `"n_predict":0,"temperature":0,"stream":false`,
		carried: set("model", "id_slot", "cache_prompt", "lora"), tokens: true,
	},
}

// form is how one warm-up is written.
type form struct {
	native *native // nil: a chat with a stub
	tokens int     // of the prompt that are sent
	drafts bool
}

// String names the form as metrics and JSON print it.
func (f *form) String() string {
	if f.native == nil {
		return "chat"
	}
	return "tokens"
}

// sent returns the prompt that goes to the worker.
func (w *plan) sent() *kv.Prompt {
	if w.form.native == nil {
		return w.prompt
	}
	q := *w.prompt
	q.Tokens, q.TokenCount = q.Tokens[:w.form.tokens:w.form.tokens], w.form.tokens
	q.Text, q.TextBoundaries = nil, nil
	if q.Chains != nil {
		q.Chains = q.Chains.Prefix(w.form.tokens)
	}
	return &q
}

// formOf picks the form of a warm-up: token ids where all of the prompt's are known and
// nothing else in the request matters to the engine's cache.
func (p *Prefiller) formOf(w *plan, v *verdict) form {
	n := natives[v.engine]
	if n == nil || w.prefix == 0 || !w.exact || v.blocks == 0 || p.chatsOnly(v.worker.ID) || !n.carries(w.body, w.prompt.Namespace) {
		return form{}
	}
	f := form{native: n, tokens: v.blocks * v.blockSize, drafts: v.drafts}
	if n.tokens || f.drafts {
		f.tokens = w.prefix
	}
	return f
}

// carries tells whether every field of a warm request has its place in the native one.
func (n *native) carries(body []byte, ns kv.Namespace) bool {
	if !n.carried["cache_salt"] && ns != (kv.Namespace{}) {
		return false
	}
	var r openai.Reader
	r.Reset(body, whole(body))
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		known := implied[string(key)] || n.carried[string(key)]
		if !r.Null() {
			if !known {
				return false
			}
			r.Skip()
		}
	}
	return r.Err() == nil
}

// request appends the native request for the first tokens of ids. chat is the warm request
// as a chat; rank is "" where the worker has one.
func (f *form) request(dst, chat []byte, ids []uint32, rank string) []byte {
	n := f.native
	dst = append(append(append(dst, `{"`...), n.ids...), `":[`...)
	for i, id := range ids[:f.tokens] {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	dst = append(dst, `],`...)
	if f.drafts && n.drafts != "" {
		dst = append(dst, n.drafts...)
	} else {
		dst = append(dst, n.only...)
	}
	if n.rank != "" && rank != "" {
		dst = append(append(append(append(dst, `,"`...), n.rank...), `":`...), rank...)
	}
	var r openai.Reader
	r.Reset(chat, whole(chat))
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		value := r.Skip()
		if n.carried[name] {
			dst = append(append(append(append(dst, `,"`...), name...), `":`...), value.Of(chat)...)
		}
	}
	return append(dst, '}')
}

// deliver sends a warm-up in its form. A worker that does not take token ids gets the chat
// instead, then and from then on.
func (p *Prefiller) deliver(ctx context.Context, j *job, w *plan, lease *router.Lease) (Answer, error) {
	rank := ""
	if lease.SendRank() {
		rank = strconv.Itoa(lease.Worker().Rank)
	}
	u := &Warmup{Worker: lease.Worker(), Path: pathChat, Body: w.body, Authorization: j.end.Authorization}
	u.Header = warmHeader(make([]byte, 0, len(j.end.Header)+128), j.end.Header, newID(), rank)
	if w.form.native == nil {
		p.metrics.forms.WithLabelValues("chat").Inc()
		return p.dispatch(ctx, u)
	}
	tokens := *u
	tokens.Path = w.form.native.path
	tokens.Body = w.form.request(make([]byte, 0, 7*w.form.tokens+256), w.body, w.prompt.Tokens, rank)
	a, err := p.dispatch(ctx, &tokens)
	if err != nil || !refuses(&a) {
		p.metrics.forms.WithLabelValues("tokens").Inc()
		return a, err
	}
	p.metrics.forms.WithLabelValues("refused").Inc()
	u.Header = warmHeader(u.Header[:0], j.end.Header, newID(), rank)
	if a, err = p.dispatch(ctx, u); err == nil && a.ok() {
		p.chatOnly(u.Worker.ID)
	}
	return a, err
}

// refuses tells whether an engine does not know the endpoint, or not in this form.
// Gateways say so with a page for people, or with status 200 and an error.
func refuses(a *Answer) bool {
	if a.Void {
		return true
	}
	switch a.Status {
	case 400, 404, 405, 422:
		return true
	}
	return false
}

// chatLife is how long a worker that took a chat but no token ids is not asked again: it
// may be another release by then.
const chatLife = time.Hour

func (p *Prefiller) chatOnly(worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	remember(p.mu.chats, worker, chatLife)
}

// remember notes for a while that a worker refused something.
func remember(refusals map[string]time.Time, worker string, d time.Duration) {
	if len(refusals) >= maxPauses {
		clear(refusals) // each costs one refused request to learn again
	}
	refusals[worker] = time.Now().Add(d)
}

func (p *Prefiller) chatsOnly(worker string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.chats[worker].After(time.Now())
}
