package prefill

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// stateWarmed is the state of a conversation whose warm-up is done.
const stateWarmed = "warmed"

const (
	firstWait = 50 * time.Millisecond // before a busy worker is looked at again; doubled …
	longWait  = 400 * time.Millisecond
)

// work takes one warm-up from the end of its turn to its answer.
func (p *Prefiller) work(ctx context.Context, j *job) {
	ctx, cancel := context.WithDeadline(ctx, j.ended.Add(jobLife))
	defer cancel()
	p.mu.Lock()
	j.cancel = cancel
	over := j.over
	p.mu.Unlock()
	if over {
		return // stop has let go of the turn
	}
	defer j.turn.drop()
	// Blocks of the reply are told by events that may still be on their way.
	if !sleep(ctx, time.Until(j.ended.Add(settleDelay))) {
		p.stop(j, outcomeSkipped, skipShutdown)
		return
	}
	w, reason := p.prepare(ctx, j)
	if reason != "" {
		p.stop(j, outcomeSkipped, reason)
		return
	}
	for p.send(ctx, j, w) {
	}
}

// send waits for its moment and sends the warm-up. It tells whether the warm-up had to
// give way and should go on later.
func (p *Prefiller) send(ctx context.Context, j *job, w *plan) (again bool) {
	sending, cut := context.WithCancel(ctx)
	defer cut()
	var lease *router.Lease
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		var reason string
		var later bool
		if lease, reason, later = p.try(ctx, j, w, cut); reason == "" {
			break
		}
		if !later || !rest(ctx, wait, j.poke) {
			p.enough(j, reason)
			return false
		}
	}
	if lease == nil {
		return false // held out, or cancelled at the last moment
	}
	p.yieldLate(lease.Worker(), j.turn.id.model)
	a, err := p.deliver(sending, j, w, lease)
	p.metrics.inflight.Dec()
	p.mu.Lock()
	gaveWay := j.lease == nil && !j.over
	if j.lease == lease {
		j.lease = nil
		p.sending.Add(-1)
		p.mu.learn.spent(j.c, time.Since(j.sent))
	}
	p.mu.Unlock()
	if gaveWay {
		return sleep(ctx, firstWait) || p.enough(j, skipLoad)
	}
	if err != nil {
		lease.Done(noOutcome)
	} else {
		lease.Done(answered(a))
	}
	p.finished(j, lease.Worker().ID, a, err, ctx.Err())
	return false
}

// enough ends a warm-up that no gate lets pass. One that was sent before and gave way has
// warmed a part.
func (p *Prefiller) enough(j *job, reason string) bool {
	p.mu.Lock()
	sent := j.tries > 0 && !j.over
	if sent {
		p.endLocked(j)
		j.c.state, j.c.warm.partial = stateWarmed, true
		p.recordLocked(j, stateWarmed, reason)
	}
	p.mu.Unlock()
	if !sent {
		p.stop(j, outcomeSkipped, reason)
	}
	return false
}

// outdoneLocked tells whether another warm-up that waits for the worker should go first:
// one of which more is expected for the same engine time. That one is made to look.
func (p *Prefiller) outdoneLocked(j *job, worker kv.WorkerRank) bool {
	best := j
	for _, k := range p.mu.jobs {
		if k.waits == worker && k.worth > best.worth && time.Now().Before(k.ended.Add(jobLife-longWait)) {
			best = k
		}
	}
	if best == j {
		return false
	}
	nudge(best.poke)
	return true
}

// nudge wakes whoever reads from a channel with room for one.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for d and tells whether ctx lasted so long.
func sleep(ctx context.Context, d time.Duration) bool { return rest(ctx, d, nil) }

// rest waits for d, or for a poke, and tells whether ctx lasted so long.
func rest(ctx context.Context, d time.Duration, poke <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-poke:
	}
	return ctx.Err() == nil
}

// newID returns a request id that shows what it is for.
func newID() string {
	var b [8]byte
	for i, v := 0, rand.Uint64(); i < len(b); i++ {
		b[i] = byte(v >> (8 * i))
	}
	return "warm-" + hex.EncodeToString(b[:])
}

// plan is one warm request and what is known of its prompt.
type plan struct {
	body      []byte // as a chat with a stub
	prompt    *kv.Prompt
	prefix    int  // tokens of the prompt that the next turn shares; 0: tokens are not known
	exact     bool // prefix is what several renderings have in common
	texts     int  // text blocks that it shares, where tokens are not known
	visible   int  // bytes of replies and tool messages since the last user's message
	maxTokens int  // of the client, so that the router sees the turn to come
	known     bool // the tokens of the finished turn's own prompt are known
	shared    int  // tokens that its prompt and the warm one share
	generated int  // tokens that its prompt, the reply behind it and the warm one share; -1: not known
	expect    *expectation
	form      form // of the request under way
}

// prepare builds the warm request and finds out what it shares with the next turn.
func (p *Prefiller) prepare(ctx context.Context, j *job) (w *plan, reason string) {
	t := j.turn
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, t.body, &v); err != nil {
		return nil, skipShape
	}
	body := t.body
	if (openai.Edit{RemoveHints: true}).Needed(&v) {
		body = openai.Rewrite(make([]byte, 0, len(body)), body, &v, openai.Edit{RemoveHints: true})
		if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
			return nil, skipShape
		}
	}
	p.mu.Lock()
	others := p.mu.habits.of(j.c.scope)
	p.mu.Unlock()
	e, otherwise := echoOf(body, &v, &t.reply, t.own, others)
	stubs := stubsFor(body, &v)
	w = &plan{maxTokens: v.MaxTokens, visible: visible(&v, &t.reply), generated: -1}
	var err error
	if w.body, err = warmBody(nil, body, &v, &t.reply, &e, stubs[0]); err != nil {
		return nil, skipShape
	}
	if w.prompt = p.identify(ctx, w.body, t.id.ns); w.prompt == nil {
		return nil, skipShape
	}
	whole := whollyExact(w.prompt)
	if whole {
		w.prefix = len(w.prompt.Tokens)
		w.compare(&j.end, t.reply.ids)
	}
	// The first rendering bounds the gain from above; a second one is only worth its
	// price where that is not too little.
	if _, reason, again := p.judge(j, w); reason != "" && !again {
		return nil, reason
	}
	other, err := warmBody(nil, body, &v, &t.reply, &e, stubs[1])
	if err != nil {
		return nil, skipShape
	}
	w.exact = whole
	w.cut(p.identify(ctx, other, t.id.ns))
	if otherwise != e {
		// Nobody knows how this client writes replies back: what is the same both ways is
		// warmed.
		if other, err = warmBody(nil, body, &v, &t.reply, &otherwise, stubs[1]); err != nil {
			return nil, skipShape
		}
		w.cut(p.identify(ctx, other, t.id.ns))
	}
	w.expect = p.expect(w, t.body, &e, &t.reply)
	return w, ""
}

// cut shortens what the next turn shares to what another rendering has, too.
func (w *plan) cut(q *kv.Prompt) {
	switch {
	case q == nil || whollyExact(w.prompt) && !whollyExact(q):
		w.prefix, w.texts, w.exact = max(min(w.prefix, len(w.prompt.Tokens)-stubTokens), 0), 0, false
	case whollyExact(w.prompt):
		// The last token may be another one once the next message's text follows it.
		w.prefix = max(min(w.prefix, common(w.prompt.Tokens, q.Tokens)-1), 0)
	case w.texts == 0:
		w.texts = common(w.prompt.Text, q.Text)
	default:
		w.texts = min(w.texts, common(w.prompt.Text, q.Text))
	}
}

// stubTokens is a generous guess at the tokens of a stub message with what the template
// writes around it.
const stubTokens = 32

func (p *Prefiller) identify(ctx context.Context, body []byte, ns kv.Namespace) *kv.Prompt {
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
		return nil
	}
	return p.cfg.Identify(ctx, &v, body, ns)
}

// whollyExact tells whether all tokens of a prompt are known. An engine's own may come with
// the reason why they were not made here.
func whollyExact(p *kv.Prompt) bool {
	return p.Exact() && (p.Reason == "" || p.Source == kv.SourceEngine) && len(p.Tokens) == p.TokenCount
}

// compare finds where the next turn's prompt leaves that of the finished one, and what the
// engine has computed for it: the prompt and all of the reply but its last token. Only the
// engine's own ids say what that is: text that is tokenised again may be other tokens.
func (w *plan) compare(e *End, reply []uint32) {
	if e.Prompt == nil || !whollyExact(e.Prompt) {
		return
	}
	w.known, w.shared = true, common(e.Prompt.Tokens, w.prompt.Tokens)
	if len(reply) == 0 || len(reply) != e.Usage.CompletionTokens {
		return
	}
	w.generated = w.shared
	if w.shared == len(e.Prompt.Tokens) {
		w.generated += common(reply[:len(reply)-1], w.prompt.Tokens[w.shared:])
	}
}

func common[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// visible counts the bytes of content since the last user's message, the reply included.
func visible(v *openai.Request, m *reply) int {
	rest, _, _ := withoutReasoning(m.content)
	n := len(rest)
	for i := range m.calls {
		n += len(m.calls[i].name) + len(m.calls[i].args)
	}
	for i := len(v.Messages) - 1; i >= 0 && v.Messages[i].Role != "user"; i-- {
		if r := v.Messages[i].Role; r == "assistant" || r == "tool" {
			n += v.Messages[i].End - v.Messages[i].Start
		}
	}
	return n
}

// try looks at the worker that would take the next turn and books the warm-up there. A
// reason says why not, and again whether that may change soon. Without lease and reason
// the job was cancelled.
func (p *Prefiller) try(ctx context.Context, j *job, w *plan, cut context.CancelFunc) (lease *router.Lease, reason string, again bool) {
	p.admit.Lock()
	defer p.admit.Unlock()
	v, reason, again := p.judge(j, w)
	p.mu.Lock()
	if !j.over {
		p.shareLocked(j, &v)
	}
	j.waits, j.worth = kv.WorkerRank{}, v.expect.Saved/max(v.seconds, 1e-9)
	if reason == "" && !j.over && p.outdoneLocked(j, v.worker) {
		reason, again = skipLoad, true
	}
	if reason != "" {
		if again {
			j.waits = v.worker
		}
		p.mu.Unlock()
		return nil, reason, again
	}
	if j.over {
		p.mu.Unlock()
		return nil, "", false
	}
	g, probe := j.c.group, j.c.probe
	if g == groupNone {
		g, probe = p.mu.learn.assign(j.c.scope, p.cfg.Holdout, p.mu.rand)
	}
	switch g {
	case groupHoldout:
		p.endLocked(j)
		j.c.group, j.c.state = g, outcomeHoldout
		p.closeLocked(j.c, outcomeHoldout, "")
	case groupClosed:
		p.endLocked(j)
		j.c.group, j.c.state = g, outcomeSkipped+":"+skipLearning
		p.closeLocked(j.c, outcomeSkipped, skipLearning)
	}
	p.mu.Unlock()
	if g != groupWarmed {
		return nil, "", false
	}
	w.form = p.formOf(w, &v)
	lease, err := p.cfg.Router.Route(ctx, &router.Request{
		Model: j.turn.id.model, Key: j.turn.id.key, Prompt: w.sent(), MaxTokens: 1,
		PinWorker: v.worker.ID, PinRank: v.worker.Rank, Speculative: true,
	})
	if err != nil {
		return nil, skipWorker, false
	}
	p.mu.Lock()
	if j.over {
		p.mu.Unlock()
		lease.Done(noOutcome)
		return nil, "", false
	}
	j.lease, j.cut, j.sent = lease, cut, time.Now()
	j.c.group, j.c.probe, j.c.state = g, probe, "warming"
	before := j.c.warm
	if j.tries++; j.tries == 1 {
		j.c.warm = v.warmth()
		p.metrics.expect(j.trigger, &v.expect)
	} else {
		j.c.warm.goesOn(&v)
	}
	j.c.warm.form = w.form.String()
	p.mu.table.expect(j.c, w.expect)
	p.sendsLocked(&before, &j.c.warm)
	p.sending.Add(1)
	p.metrics.inflight.Inc()
	p.metrics.sent.WithLabelValues(string(j.trigger)).Inc()
	p.mu.Unlock()
	return lease, "", false
}

// finished counts the answer of a warm-up. ended is the error of its context.
func (p *Prefiller) finished(j *job, worker string, a Answer, err, ended error) {
	now := time.Now()
	p.mu.Lock()
	if j.over {
		p.mu.Unlock()
		return // cancelled
	}
	p.endLocked(j)
	p.metrics.seconds.Observe(now.Sub(j.sent).Seconds())
	if err == nil && a.ok() {
		j.c.state = stateWarmed
		p.recordLocked(j, stateWarmed, "")
		p.mu.Unlock()
		return
	}
	reason := failure(a, err)
	if errors.Is(ended, context.DeadlineExceeded) {
		reason = "timeout"
	}
	j.c.state = outcomeFailed
	p.closeLocked(j.c, outcomeFailed, reason)
	p.closeTokensLocked(&j.c.warm, 0, tokenFailed)
	p.recordLocked(j, outcomeFailed, reason)
	p.mu.Unlock()
	switch {
	case a.RetryAfter > 0:
		p.Pause(worker, a.RetryAfter)
	case reason != "http_4xx" && reason != "void":
		p.Pause(worker, failurePause)
	}
}
