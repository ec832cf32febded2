package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

// tokenWays lists the ways of each engine, best first. Bodies pass verbatim: vLLM and
// SGLang ignore the fields that their tokenizer endpoints do not know.
func tokenWays(engine string, kind openai.Kind) []way {
	switch {
	case engine == EngineVLLM && kind == openai.Chat:
		return []way{{"/v1/chat/completions/render", renderChat}, {"/tokenize", tokenizeVerbatim("/tokenize")}}
	case engine == EngineVLLM:
		return []way{{"/tokenize", tokenizeVerbatim("/tokenize")}}
	case engine == EngineSGLang:
		return []way{{"/v1/tokenize", tokenizeVerbatim("/v1/tokenize")}}
	case engine == EngineLlamaCPP && kind == openai.Chat:
		return []way{{"/apply-template and /tokenize", templateLlamaCPP}}
	case engine == EngineLlamaCPP:
		return []way{{"/tokenize", promptLlamaCPP}}
	}
	return nil
}

// Tokenize asks a worker of the model for the token ids of a request's prompt. It is
// prompt.Source. The place of the first image or audio placeholder is known only where the
// engine renders the whole request.
func (f *Fleet) Tokenize(ctx context.Context, model string, kind openai.Kind, body []byte) (prompt.Tokens, error) {
	reason := errNoTokenizer
	for _, w := range f.tokenizers(model) {
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
	all := f.workers()
	list := all[:0]
	for _, w := range all {
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
	if until := e.until.Load(); until != 0 && time.Now().UnixNano() > until {
		e.refused.Store(0)
		e.until.Store(0)
	}
	ways := tokenWays(w.engine(), kind)
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

// ask posts a body to a tokenizer endpoint and decodes the answer.
func (w *Worker) ask(ctx context.Context, path string, body []byte, answer any) error {
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
	if json.Unmarshal(raw, answer) != nil {
		return fmt.Errorf("worker %s: %s answers something else than token ids: %w", w.id, path, errUnsupported)
	}
	return nil
}

// renderChat asks vLLM for the very tokens that it would run.
func renderChat(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
	const path = "/v1/chat/completions/render"
	var answer struct {
		TokenIDs []uint32 `json:"token_ids"`
		Features struct {
			Placeholders json.RawMessage `json:"mm_placeholders"`
		} `json:"features"`
	}
	if err := w.ask(ctx, path, body, &answer); err != nil {
		return prompt.Tokens{}, err
	}
	if answer.TokenIDs == nil {
		return prompt.Tokens{}, fmt.Errorf("worker %s: %s answers without token_ids: %w", w.id, path, errUnsupported)
	}
	at := firstOffset(answer.Features.Placeholders)
	return prompt.Tokens{IDs: answer.TokenIDs, Prefix: min(at, len(answer.TokenIDs))}, nil
}

// firstOffset returns the smallest offset in vLLM's placeholders, {"image": [{"offset": 7,
// "length": 3}]}; 0 if there is none: then nothing before an image is known.
func firstOffset(raw json.RawMessage) int {
	var byModality map[string][]struct {
		Offset *int `json:"offset"`
	}
	if len(raw) == 0 || json.Unmarshal(raw, &byModality) != nil {
		return 0
	}
	at := math.MaxInt
	for _, list := range byModality {
		for _, p := range list {
			if p.Offset != nil {
				at = min(at, *p.Offset)
			}
		}
	}
	if at == math.MaxInt {
		return 0
	}
	return max(at, 0)
}

// tokenizeVerbatim sends the request's own body, which holds messages or prompt under the
// names that the endpoint reads. It does not say where placeholders are.
func tokenizeVerbatim(path string) func(context.Context, *Worker, []byte) (prompt.Tokens, error) {
	return func(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
		var answer struct {
			Tokens []uint32 `json:"tokens"`
		}
		if err := w.ask(ctx, path, body, &answer); err != nil {
			return prompt.Tokens{}, err
		}
		if answer.Tokens == nil {
			return prompt.Tokens{}, fmt.Errorf("worker %s: %s answers without tokens: %w", w.id, path, errUnsupported)
		}
		return prompt.Tokens{IDs: answer.Tokens}, nil
	}
}

// templateLlamaCPP renders a chat with llama.cpp's own template and tokenizes the text.
func templateLlamaCPP(ctx context.Context, w *Worker, body []byte) (prompt.Tokens, error) {
	var rendered struct {
		Prompt *string `json:"prompt"`
	}
	if err := w.ask(ctx, "/apply-template", body, &rendered); err != nil {
		return prompt.Tokens{}, err
	}
	if rendered.Prompt == nil {
		return prompt.Tokens{}, fmt.Errorf("worker %s: /apply-template answers without a prompt: %w", w.id, errUnsupported)
	}
	return contentLlamaCPP(ctx, w, openai.AppendString(nil, *rendered.Prompt))
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
