package upstream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
)

// tokenizer remembers which tokenizer endpoint a worker has, per kind of request. Engines
// gain endpoints with an upgrade, so a refusal is forgotten after a while.
type tokenizer struct {
	kinds [2]endpoints // by openai.Kind
}

// endpoints are the ways to tokenize that a worker has refused, and what the last one
// said. Ways are numbered in the order of tokenWays.
type endpoints struct {
	refused atomic.Uint32 // bits of ways
	until   atomic.Int64  // when refusals are forgotten, unix ns
	used    atomic.Int32  // 1 + the way that worked last
	reason  atomic.Pointer[string]
}

// refusalLife is how long a missing endpoint counts as missing.
const refusalLife = 10 * time.Minute

// errUnsupported says that the worker has no such endpoint or cannot take this prompt by it.
var errUnsupported = errors.New("endpoint not supported")

// way is one way to get a prompt's token ids from an engine.
type way struct {
	name string
	call func(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error)
}

// tokenWays lists the ways of each engine by openai.Kind, best first. Bodies pass verbatim:
// vLLM and SGLang ignore the fields that their tokenizer endpoints do not know.
var tokenWays = map[string][2][]way{
	EngineVLLM: {
		openai.Chat:        {{"/v1/chat/completions/render", renderChat}, {"/tokenize", tokenizeVerbatim("/tokenize")}},
		openai.Completions: {{"/tokenize", tokenizeVerbatim("/tokenize")}},
	},
	EngineSGLang: {
		openai.Chat:        {{"/v1/tokenize", tokenizeVerbatim("/v1/tokenize")}},
		openai.Completions: {{"/v1/tokenize", tokenizeVerbatim("/v1/tokenize")}},
	},
	EngineLlamaCPP: {
		openai.Chat:        {{"/apply-template and /tokenize", templateLlamaCPP}},
		openai.Completions: {{"/tokenize", promptLlamaCPP}},
	},
}

// Tokenizer returns what tokenizes for a model, nil where none of its workers can: such a
// request needs no copy of its body and no call to learn that.
func (f *Fleet) Tokenizer(model string, kind openai.Kind) prompt.Source {
	for _, w := range f.tokenizers(model) {
		if w.tok.kinds[kind&1].left(tokenWays[w.engine()][kind&1]) {
			return f
		}
	}
	return nil
}

// left tells whether a way is left that the worker has not refused.
func (e *endpoints) left(ways []way) bool {
	e.forgive()
	return len(ways) > 0 && e.refused.Load() != 1<<len(ways)-1
}

// forgive forgets refusals that are old.
func (e *endpoints) forgive() {
	if until := e.until.Load(); until != 0 && time.Now().UnixNano() > until {
		e.refused.Store(0)
		e.until.Store(0)
	}
}

// Tokenize asks a worker of the model for the token ids of a request's prompt. It is
// prompt.Source. The place of the first image or audio placeholder is known only where the
// engine renders the whole request.
func (f *Fleet) Tokenize(ctx context.Context, model string, kind openai.Kind, body []byte) (prompt.Tokens, error) {
	return f.tokenizeBy(ctx, f.tokenizers(model), kind, body)
}

// Styled returns the Source that asks only workers whose engines have a style:
// prompt.Models compares the tokens of each style with it.
func (f *Fleet) Styled(style prompt.Style) prompt.Source { return styled{f, style} }

type styled struct {
	f     *Fleet
	style prompt.Style
}

func (s styled) Tokenize(ctx context.Context, model string, kind openai.Kind, body []byte) (prompt.Tokens, error) {
	other := func(w *Worker) bool { return w.style() != s.style }
	return s.f.tokenizeBy(ctx, slices.DeleteFunc(s.f.tokenizers(model), other), kind, body)
}

// tokenizeBy asks the first of the workers that can.
func (f *Fleet) tokenizeBy(ctx context.Context, workers []*Worker, kind openai.Kind, body []byte) (prompt.Tokens, error) {
	reason := errNoTokenizer
	for _, w := range workers {
		t, err := w.tokenize(ctx, kind, body)
		if err == nil {
			f.metrics.tokenize.WithLabelValues(w.id, "ok").Inc()
			return t, nil
		}
		reason = err
		if !errors.Is(err, errUnsupported) {
			f.metrics.tokenize.WithLabelValues(w.id, "error").Inc()
			break // one slow or sick worker is enough to wait for
		}
		f.metrics.tokenize.WithLabelValues(w.id, "unsupported").Inc()
	}
	return prompt.Tokens{}, reason
}

// tokenizers returns the healthy workers of a model, starting at another one each time:
// tokenizing costs the engine's front end CPU.
func (f *Fleet) tokenizers(model string) []*Worker {
	var list []*Worker
	for _, w := range f.workers() {
		if w.serves(model) {
			list = append(list, w)
		}
	}
	if len(list) < 2 {
		return list
	}
	at := int(f.turn.Add(1) % uint32(len(list)))
	return append(list[at:len(list):len(list)], list[:at]...)
}

// tokenize tries the ways of the worker's engine that it has not refused.
func (w *Worker) tokenize(ctx context.Context, kind openai.Kind, body []byte) (prompt.Tokens, error) {
	e := &w.tok.kinds[kind&1]
	e.forgive()
	ways := tokenWays[w.engine()][kind&1]
	err := fmt.Errorf("engine %s of worker %s has no tokenizer endpoint that is known: %w", w.engine(), w.id, errUnsupported)
	if len(ways) == 0 {
		e.say(err)
		return prompt.Tokens{}, err
	}
	err = fmt.Errorf("worker %s has no tokenizer endpoint: %w", w.id, errUnsupported)
	for i, way := range ways {
		if e.refused.Load()>>i&1 != 0 {
			continue
		}
		var t prompt.Tokens
		t, err = way.call(ctx, w, body)
		if err == nil {
			e.used.Store(int32(i + 1))
			e.reason.Store(nil)
			return t, nil
		}
		if !errors.Is(err, errUnsupported) {
			break
		}
		e.refused.Or(1 << i)
		e.until.Store(time.Now().Add(refusalLife).UnixNano())
	}
	e.say(err)
	return prompt.Tokens{}, err
}

func (e *endpoints) say(err error) {
	s := err.Error()
	e.reason.Store(&s)
}

// describe says where a worker's token ids come from, or why there are none.
func (t *tokenizer) describe() string {
	var parts []string
	for kind := range t.kinds {
		e := &t.kinds[kind]
		name := openai.Kind(kind).String()
		if reason := e.reason.Load(); reason != nil {
			parts = append(parts, name+": by text, "+*reason)
		} else if e.used.Load() > 0 {
			parts = append(parts, name+": by the engine")
		}
	}
	if len(parts) == 0 {
		return "not asked yet"
	}
	return strings.Join(parts, "; ")
}

// ask posts a body to a tokenizer endpoint and reads the object that it answers: field is
// called with each key and must read or skip its value, with which rest begins.
func (w *Worker) ask(ctx context.Context, path string, body []byte, field func(key string, r *openai.Reader, rest []byte)) error {
	code, raw, err := w.fetch(ctx, fasthttp.MethodPost, path, body)
	if err != nil {
		return err
	}
	switch code {
	case fasthttp.StatusOK:
	case fasthttp.StatusNotFound, fasthttp.StatusMethodNotAllowed, fasthttp.StatusNotImplemented,
		fasthttp.StatusUnauthorized, fasthttp.StatusForbidden:
		return fmt.Errorf("worker %s: %s answers %d: %w", w.id, path, code, errUnsupported)
	default:
		// The prompt itself may be at fault: the next one is asked again.
		return fmt.Errorf("worker %s: %s answers %d", w.id, path, code)
	}
	var r openai.Reader
	r.Reset(raw, openai.Span{End: len(raw)})
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		field(string(key), &r, raw[r.Pos():])
	}
	if r.Err() != nil {
		return fmt.Errorf("worker %s: %s answers something else than a JSON object: %w", w.id, path, errUnsupported)
	}
	return nil
}

// idBytes is about what a token id takes in JSON, with its comma.
const idBytes = 6

// readIDs reads an array of token ids; nil where it is something else. encoding/json takes
// 10 ms for those of a long prompt.
func readIDs(r *openai.Reader, rest []byte) []uint32 {
	if r.Peek() != '[' {
		r.Skip()
		return nil
	}
	ids, good := make([]uint32, 0, len(rest)/idBytes), true
	r.Array()
	for r.Elem() {
		id, ok := r.Int()
		good = good && ok && id >= 0 && id <= math.MaxUint32
		ids = append(ids, uint32(id))
	}
	if !good {
		return nil
	}
	if cap(ids) > 2*len(ids) { // much else follows; the ids are kept for long
		ids = append(make([]uint32, 0, len(ids)), ids...)
	}
	return ids
}

// renderChat asks vLLM for the very tokens that it would run.
func renderChat(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
	const path = "/v1/chat/completions/render"
	var ids []uint32
	at := 0 // nothing before an image is known
	err := w.ask(ctx, path, body, func(key string, r *openai.Reader, rest []byte) {
		switch {
		case key == "token_ids":
			ids = readIDs(r, rest)
		case key == "features" && r.Peek() == '{':
			at = firstPlaceholder(r)
		default:
			r.Skip()
		}
	})
	if err != nil {
		return prompt.Tokens{}, err
	}
	if ids == nil {
		return prompt.Tokens{}, fmt.Errorf("worker %s: %s answers without token_ids: %w", w.id, path, errUnsupported)
	}
	return prompt.Tokens{IDs: ids, Prefix: min(at, len(ids))}, nil
}

// firstPlaceholder reads vLLM's features and returns the smallest offset in
// "mm_placeholders": {"image": [{"offset": 7, "length": 3}]}, 0 if there is none.
func firstPlaceholder(r *openai.Reader) int {
	at := int64(math.MaxInt64)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) != "mm_placeholders" || r.Peek() != '{' {
			r.Skip()
			continue
		}
		r.Object()
		for _, ok := r.Key(); ok; _, ok = r.Key() {
			if r.Peek() != '[' {
				r.Skip()
				continue
			}
			r.Array()
			for r.Elem() {
				at = min(at, readOffset(r))
			}
		}
	}
	if at == math.MaxInt64 {
		return 0
	}
	return int(max(at, 0))
}

// readOffset reads one placeholder and returns its offset, MaxInt64 if it has none.
func readOffset(r *openai.Reader) int64 {
	at := int64(math.MaxInt64)
	if r.Peek() != '{' {
		r.Skip()
		return at
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) != "offset" || r.Peek() != '0' {
			r.Skip()
			continue
		}
		if n, ok := r.Int(); ok {
			at = n
		}
	}
	return at
}

// tokenizeVerbatim sends the request's own body, which holds messages or prompt under the
// names that the endpoint reads. It does not say where placeholders are.
func tokenizeVerbatim(path string) func(context.Context, *Worker, []byte) (prompt.Tokens, error) {
	return func(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
		var ids []uint32
		err := w.ask(ctx, path, body, func(key string, r *openai.Reader, rest []byte) {
			if key == "tokens" {
				ids = readIDs(r, rest)
				return
			}
			r.Skip()
		})
		if err != nil {
			return prompt.Tokens{}, err
		}
		if ids == nil {
			return prompt.Tokens{}, fmt.Errorf("worker %s: %s answers without tokens: %w", w.id, path, errUnsupported)
		}
		return prompt.Tokens{IDs: ids}, nil
	}
}

// templateLlamaCPP renders a chat with llama.cpp's own template and tokenizes the text.
func templateLlamaCPP(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
	var rendered []byte // a JSON string
	err := w.ask(ctx, "/apply-template", body, func(key string, r *openai.Reader, _ []byte) {
		if key != "prompt" || r.Peek() != '"' {
			r.Skip()
			return
		}
		raw, _ := r.String()
		rendered = append(append(append(make([]byte, 0, len(raw)+2), '"'), raw...), '"')
	})
	if err != nil {
		return prompt.Tokens{}, err
	}
	if rendered == nil {
		return prompt.Tokens{}, fmt.Errorf("worker %s: /apply-template answers without a prompt: %w", w.id, errUnsupported)
	}
	return contentLlamaCPP(ctx, w, rendered)
}

// promptLlamaCPP tokenizes the prompt of a completion.
func promptLlamaCPP(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
	var v openai.Request
	if err := openai.ParseRequest(openai.Completions, body, &v); err != nil || !v.Prompt.Present() {
		return prompt.Tokens{}, fmt.Errorf("worker %s: the prompt is not text", w.id)
	}
	return contentLlamaCPP(ctx, w, v.Prompt.Of(body))
}

// contentLlamaCPP tokenizes a JSON string the way llama.cpp does with a prompt.
func contentLlamaCPP(ctx context.Context, w *Worker, content []byte) (prompt.Tokens, error) {
	body := append([]byte(`{"add_special":true,"parse_special":true,"content":`), content...)
	return tokenizeVerbatim("/tokenize")(ctx, w, append(body, '}'))
}
