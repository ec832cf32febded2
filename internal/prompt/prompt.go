package prompt

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/jinja"
	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// placeholderTokens is the guess for one image, audio or file: 576 is one tile of a
// common vision encoder. It serves the estimate of a prompt's length only.
const placeholderTokens = 576

// maxReason bounds what a Reason quotes of a Source's error, in bytes.
const maxReason = 200

// Tokens is what a Source says of one prompt.
type Tokens struct {
	IDs []uint32
	// Prefix is the number of ids before the first image or audio placeholder; only
	// read where the request has one.
	Prefix int
}

// Source tokenises a request as its engine does, template included.
type Source interface {
	// Tokenize may keep body, which is a copy, until it returns. Its error becomes the
	// Reason of a Prompt, which people read: it must not quote the prompt.
	Tokenize(ctx context.Context, model string, kind openai.Kind, body []byte) (Tokens, error)
}

// Config of a Builder; zero values are the defaults.
type Config struct {
	// Deadline is how long one request waits for a Source; 0 is 50 ms. A larger one
	// adds to the TTFT of requests whose engine is slow to tokenise.
	Deadline time.Duration
	// CacheBytes bounds the token ids kept of engines and, apart, those of local segments,
	// 4 bytes each; 0 is 64 MiB. MemoBytes bounds what is kept of prompts that were
	// tokenised here; 0 is 256 MiB.
	CacheBytes, MemoBytes int64
	// Models are tokenised in this process; nil has none.
	Models *Models
	// Now is the clock; nil is time.Now.
	Now        func() time.Time
	Registerer prometheus.Registerer
}

// Builder makes the identity of prompts.
type Builder struct {
	cfg     Config
	seeds   [2]maphash.Seed
	forms   sync.Pool
	ratios  ratios
	calls   calls
	local   *segments
	metrics *metrics
}

// New returns a Builder. It starts nothing.
func New(cfg Config) *Builder {
	if cfg.Deadline <= 0 {
		cfg.Deadline = 50 * time.Millisecond
	}
	if cfg.CacheBytes <= 0 {
		cfg.CacheBytes = 64 << 20
	}
	if cfg.MemoBytes <= 0 {
		cfg.MemoBytes = 256 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	b := &Builder{cfg: cfg, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, metrics: newMetrics(cfg.Registerer)}
	b.forms.New = func() any { return newForm(b.seeds) }
	b.calls.init(cfg, b.metrics)
	b.local = newSegments(cfg.CacheBytes, cfg.MemoBytes, b.seeds, b.metrics, cfg.Now)
	return b
}

// Close cancels the tokenizer calls that are still under way and waits for them.
// Build may be called after it and then knows no Source.
func (b *Builder) Close() { b.calls.close() }

// Build returns the identity of req, which was parsed from body, for model, the served
// name after aliases. A nil src leaves text. It waits at most Config.Deadline.
func (b *Builder) Build(ctx context.Context, req *openai.Request, body []byte, src Source, ns kv.Namespace, model string) *kv.Prompt {
	f := b.forms.Get().(*form)
	defer b.forms.Put(f)
	u, whyNot := b.cfg.Models.of(model, req)
	f.build(req, body, src != nil && u == nil, model, ns.LoRA, ns.Salt)

	p := &kv.Prompt{Source: kv.SourceText, Namespace: ns, BytesPerToken: b.ratios.of(model)}
	b.fillText(p, f, ns.TextSeed(model))
	why := b.fillTokens(ctx, &ask{p, f, req, body, src, model, u, whyNot})
	b.metrics.sources.WithLabelValues(p.Source.String(), why.class).Inc()
	p.Reason = why.text
	return p
}

// ask is one prompt that wants tokens.
type ask struct {
	p      *kv.Prompt
	f      *form
	req    *openai.Request
	body   []byte
	src    Source // nil where no engine tokenises
	model  string
	local  *usable // nil where this process cannot, for that reason
	whyNot string
}

// reason says why an identity is not better: for a label and for people.
type reason struct{ class, text string }

// and adds a limit of the prompt itself. The class stays that of the first.
func (r reason) and(class, text string) reason {
	if r.text == "" {
		return reason{class, text}
	}
	return reason{r.class, r.text + "; " + text}
}

// fillText sets the text blocks and the estimate of the length in tokens.
func (b *Builder) fillText(p *kv.Prompt, f *form, seed uint64) {
	text := f.text
	if f.stop >= 0 {
		text = text[:f.stop]
	}
	p.TokenCount = int(math.Ceil(float64(len(f.text))/p.BytesPerToken)) + f.media*placeholderTokens
	n := len(text) / kv.TextBlockBytes
	if n == 0 {
		return
	}
	p.Text = kv.AppendTextHashes(make([]kv.SequenceHash, 0, n), text, seed)
	last := 0
	for _, e := range f.ends {
		if blocks := e.offset / kv.TextBlockBytes; blocks > last && e.offset <= len(text) {
			p.TextBoundaries = append(p.TextBoundaries, blocks)
			last = blocks
		}
	}
	if n > last {
		p.TextBoundaries = append(p.TextBoundaries, n)
	}
}

// fillTokens sets source, tokens and their count, best source first.
func (b *Builder) fillTokens(ctx context.Context, a *ask) (why reason) {
	p, req := a.p, a.req
	switch {
	case len(req.PromptTokens) > 0:
		p.Source, p.Tokens, p.TokenCount = kv.SourceClient, append([]uint32(nil), req.PromptTokens...), len(req.PromptTokens)
		p.BytesPerToken = 4 // exactly: text blocks are cut from the ids themselves
	case req.PromptEmbeds && !req.Prompt.Present():
		p.Source, p.TokenCount = kv.SourceNone, 0
		return reason{"embeddings", "the prompt is embeddings, which have no tokens"}
	case len(a.f.text) == 0:
		p.Source = kv.SourceNone
		return reason{"empty", "the prompt is empty"}
	default:
		why = b.ask(ctx, a)
	}
	if req.PromptCount > 1 {
		why = why.and("batch", fmt.Sprintf("identity of the first of %d prompts", req.PromptCount))
	}
	if req.Multimodal {
		why = why.and("multimodal", fmt.Sprintf("identity stops before the image, audio or file in messages[%d]", req.FirstMedia))
	}
	if why.class == "" {
		why.class = "exact"
	}
	return why
}

// ask gets the tokens from this process, else from the engine.
func (b *Builder) ask(ctx context.Context, a *ask) reason {
	var local reason
	if a.local != nil {
		if local = b.fromLocal(a); a.p.Source == kv.SourceLocal {
			return local
		}
	}
	if a.src == nil {
		if a.local == nil {
			local = reason{"no_tokenizer", "no tokenizer for this model and none on its workers"}
			if a.whyNot != "" {
				local.text = "no tokenizer on this model's workers, and no local one: " + a.whyNot
			}
		}
		return local
	}
	if a.local != nil {
		a.f.build(a.req, a.body, true, a.model, a.p.Namespace.LoRA, a.p.Namespace.Salt)
	}
	engine := b.fromEngine(ctx, a)
	switch {
	case engine.text == "":
		return local
	case local.text != "":
		engine.text = local.text + "; " + engine.text
	}
	return engine
}

// fromLocal renders and tokenises here. Past the deadline the tokens so far are the
// prompt's identity, an exact prefix, where they stand for half of it at least.
func (b *Builder) fromLocal(a *ask) reason {
	p, m := a.p, a.local.model
	if what := tooMuch(a.req, a.body, len(a.f.text)); what != "" {
		return reason{"deadline", "no local tokens: " + what}
	}
	from := b.cfg.Now()
	deadline := from.Add(localDeadline)
	if why := m.inexact(a.req, a.body, a.local.style); why != "" {
		return reason{"field", "no local tokens: " + why}
	}
	r := renderings.Get().(*rendering)
	defer r.free()
	r.grow(len(a.f.text), a.body)
	r.stop = func() bool { return b.cfg.Now().After(deadline) }
	if err := m.render(r, a.req, a.body, a.local.style); err != nil {
		return reason{"template", "local chat template: " + refusal(err)}
	}
	if len(r.text) > maxText {
		return reason{"deadline", fmt.Sprintf("no local tokens: %d bytes of text, more than %d", len(r.text), maxText)}
	}
	rendered := b.cfg.Now()
	if least := rendered.Add(localDeadline / 2); least.After(deadline) {
		deadline = least
	}
	before, after := m.frame(a.req, a.body, a.local.style)
	tokens, chains, read := b.local.tokens(m, p.Namespace.Seed(), before, r.text, deadline)
	b.metrics.render.Observe(rendered.Sub(from).Seconds())
	b.metrics.encode.Observe(b.cfg.Now().Sub(rendered).Seconds())
	switch {
	case 2*read < len(r.text):
		return reason{"deadline", fmt.Sprintf("no local tokens: only %d of %d bytes of the prompt can be read within %v", read, len(r.text), localDeadline)}
	case len(tokens) == 0:
		return reason{"empty", "the rendered prompt is empty"}
	}
	p.Source, p.Tokens, p.Chains, p.TokenCount = kv.SourceLocal, tokens, chains, len(tokens)
	if read < len(r.text) {
		p.TokenCount += int(float64(len(r.text)-read) / p.BytesPerToken)
		return reason{"deadline", fmt.Sprintf("identity of the first %d tokens: the rest takes more than %v", len(tokens), localDeadline)}
	}
	if prefix := r.c.prefix; len(prefix) > longBytes {
		p.TokenCount += int(float64(len(prefix)) / p.BytesPerToken)
		return reason{"deadline", fmt.Sprintf("identity of the first %d tokens: the continued reply is too long", len(tokens))}
	} else if prefix != "" || len(after) > 0 {
		p.Tokens = m.appendPrefix(append(tokens[:len(tokens):len(tokens)], after...), prefix)
		p.TokenCount = len(p.Tokens)
	}
	b.Learn(a.model, len(a.f.text), len(tokens))
	return reason{}
}

// refusal says why a prompt was not rendered, without what a template quotes of it.
func refusal(err error) string {
	var e *jinja.Error
	if errors.As(err, &e) && e.Raised {
		return fmt.Sprintf("it raises an exception in line %d", e.Line)
	}
	return shorten(err.Error())
}

// fromEngine asks the engine, or recalls what it said.
func (b *Builder) fromEngine(ctx context.Context, a *ask) reason {
	p, body := a.p, a.body
	if a.req.PromptCount > 1 {
		body = firstPrompt(body, a.req, a.model)
	}
	tokens, why := b.calls.tokens(ctx, a.f.whole, a.src, a.model, a.req.Kind, body)
	if why.class != "" {
		b.recall(p, a.f)
		if p.Source == kv.SourceEngine {
			why.text += "; tokens are those of an earlier turn"
		}
		return why
	}
	p.TokenCount = len(tokens.IDs)
	if !a.req.Multimodal {
		p.Source, p.Tokens = kv.SourceEngine, tokens.IDs
		b.Learn(a.model, len(a.f.text), len(tokens.IDs))
		return reason{}
	}
	if tokens.Prefix > 0 {
		p.Source, p.Tokens = kv.SourceEngine, tokens.IDs[:min(tokens.Prefix, len(tokens.IDs))]
	}
	return reason{}
}

// maxRecall bounds how many turns back recall looks.
const maxRecall = 64

// recall uses the tokens of the longest earlier turn of the conversation: its
// rendering, without the prompt for the reply, is where this one starts. Should a
// template render differently now, its blocks are simply not those of the engine.
func (b *Builder) recall(p *kv.Prompt, f *form) {
	for i := len(f.ends) - 2; i >= 0 && i >= len(f.ends)-1-maxRecall; i-- {
		e := f.ends[i]
		if f.stop >= 0 && e.offset > f.stop {
			continue
		}
		tokens, ok := b.calls.cached(e.key.xor(f.tail))
		if !ok {
			continue
		}
		p.Source, p.Tokens = kv.SourceEngine, tokens.IDs
		p.TokenCount = len(tokens.IDs) + int(float64(len(f.text)-e.offset)/p.BytesPerToken) + f.media*placeholderTokens
		return
	}
}

// firstPrompt returns a body that asks for the tokens of a batch's first prompt.
func firstPrompt(body []byte, req *openai.Request, model string) []byte {
	b := openai.AppendString([]byte(`{"model":`), model)
	b = append(append(b, `,"prompt":`...), req.Prompt.Of(body)...)
	if s := req.Template.AddSpecialTokens; s.Present() {
		b = append(append(b, `,"add_special_tokens":`...), s.Of(body)...)
	}
	return append(b, '}')
}

// Learn takes one sample of how many bytes of canonical text a token of model stands
// for.
func (b *Builder) Learn(model string, bytes, tokens int) {
	if !b.ratios.learn(model, bytes, tokens) {
		b.metrics.ratiosRefused.Inc()
	}
}

// Observe learns from a finished request: promptTokens is what the engine reported for
// p, which Build made of req. Prompts whose text is not all of what was counted give
// no sample.
func (b *Builder) Observe(model string, req *openai.Request, p *kv.Prompt, promptTokens int) {
	if p.Source != kv.SourceText || req.Multimodal || req.PromptCount > 1 || promptTokens <= 0 {
		return
	}
	b.Learn(model, int(float64(p.TokenCount)*p.BytesPerToken), promptTokens)
}

// shorten bounds a message from outside.
func shorten(s string) string {
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
