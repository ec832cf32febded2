package sim

import (
	"errors"
	"strings"

	"github.com/valyala/fasthttp"
)

// serve answers one HTTP request.
func (s *Server) serve(ctx *fasthttp.RequestCtx) {
	path := string(ctx.Path())
	switch path {
	case "/fault":
		s.serveFault(ctx)
		return
	case "/cache":
		s.serveCache(ctx)
		return
	}
	if !s.authorized(ctx, path) {
		ctx.SetStatusCode(fasthttp.StatusUnauthorized)
		s.json(ctx, map[string]string{"error": "Unauthorized"})
		return
	}
	var handler func(*fasthttp.RequestCtx)
	post := true
	switch path {
	case "/v1/chat/completions":
		handler = func(ctx *fasthttp.RequestCtx) { s.serveGeneration(ctx, chatAPI{}) }
	case "/v1/completions":
		handler = func(ctx *fasthttp.RequestCtx) { s.serveGeneration(ctx, completionAPI{}) }
	case "/v1/models":
		handler, post = s.serveModels, false
	case "/metrics":
		handler, post = s.serveMetrics, false
	case "/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize":
		if !s.cfg.NoTokenize && (s.cfg.Like == SGLang || !strings.HasPrefix(path, "/v1/")) {
			handler = s.serveTokenize
			if strings.HasSuffix(path, "/detokenize") {
				handler = s.serveDetokenize
			}
		}
	default:
		if s.cfg.Like == VLLM {
			handler, post = s.vllmRoute(path)
		} else {
			handler, post = s.sglangRoute(path)
		}
	}
	switch {
	case handler == nil:
		ctx.SetStatusCode(fasthttp.StatusNotFound)
		s.json(ctx, map[string]string{"detail": "Not Found"})
	case post && !ctx.IsPost():
		ctx.SetStatusCode(fasthttp.StatusMethodNotAllowed)
		s.json(ctx, map[string]string{"detail": "Method Not Allowed"})
	default:
		handler(ctx)
	}
}

// api is the form in which a generation is answered. Its methods append JSON.
type api interface {
	// prompts turns the request into tokens.
	prompts(s *Server, q *genRequest) ([]rendered, *apiError)
	// defaultMax is max_tokens where the request has none; 0 is all that fits.
	defaultMax() int
	// full returns the answer of a finished generation, for JSON.
	full(a *answer) any
	// chunks appends the SSE events of what choice i generated since c.sent.
	chunks(dst []byte, a *answer, st *stream, i int, p progress) []byte
	// usageChunk appends the event that has the usage alone.
	usageChunk(dst []byte, a *answer) []byte
}

// answer is what the writers of a response need to know of its request.
type answer struct {
	server  *Server
	gen     *generation
	req     genRequest
	id      string
	model   string
	created int64
	copies  int // choices of one prompt
	finals  int // choices whose last event is written
}

// serveGeneration runs a chat or a completion. Until the first byte of the answer the
// client's side of the connection is watched; after it also a failed write ends the
// generation. Either way its sequences leave the engine.
func (s *Server) serveGeneration(ctx *fasthttp.RequestCtx, form api) {
	a := &answer{server: s, copies: 1}
	q := &a.req
	if e := decodeBody(ctx, q); e != nil {
		s.fail(ctx, e)
		return
	}
	if e := s.prepare(ctx, a, form); e != nil {
		s.fail(ctx, e)
		return
	}
	gen := a.gen
	peer, _ := ctx.Conn().(*conn)
	if peer != nil && peer.raw != nil {
		gen.peer = peer
	}
	f := s.faults.Load()
	struck := s.strikes(f)
	if struck {
		switch {
		case f.Reset && peer != nil:
			peer.reset()
			return
		case f.Status != 0:
			s.fail(ctx, &apiError{status: f.Status, typ: "InternalServerError", message: "injected fault", retryAfter: f.RetryAfter})
			return
		case f.HangHeaders:
			_ = gen.hang()
			s.drop(ctx, peer)
			return
		}
	}
	if err := gen.rank.submit(gen); err != nil {
		s.fail(ctx, s.submitError(err))
		return
	}
	if !q.Stream {
		err := gen.finish()
		gen.close()
		if err != nil {
			s.drop(ctx, peer)
			return
		}
		s.json(ctx, form.full(a))
		return
	}
	st := &stream{gen: gen}
	st.write = func(dst []byte) ([]byte, bool, error) { return a.more(dst, form, st) }
	if struck {
		st.dieAfter, st.hangAt = f.DieAfter, f.HangAfter
	}
	// vLLM sends its headers at once, SGLang with the first event.
	if ctx.Response.ImmediateHeaderFlush = s.cfg.Like == VLLM; s.cfg.Like == SGLang {
		if err := gen.firstToken(); err != nil {
			gen.close()
			s.drop(ctx, peer)
			return
		}
	}
	ctx.SetContentType("text/event-stream; charset=utf-8")
	ctx.Response.Header.Set("Cache-Control", "no-cache")
	ctx.SetBodyStream(st, -1)
}

// prepare resolves everything that a request can get wrong.
func (s *Server) prepare(ctx *fasthttp.RequestCtx, a *answer, form api) *apiError {
	q := &a.req
	ns, e := s.namespace(q)
	if e != nil {
		return e
	}
	rank, e := s.dpRank(ctx, q)
	if e != nil {
		return e
	}
	prompts, e := form.prompts(s, q)
	if e != nil {
		return e
	}
	longest := 0
	for _, p := range prompts {
		longest = max(longest, len(p.tokens))
	}
	limit, e := s.limit(q, longest, form.defaultMax())
	if e != nil {
		return e
	}
	if q.N != nil {
		if a.copies = *q.N; a.copies < 1 || a.copies > maxChoices {
			return badRequest("n", "n must be between 1 and %d, got %d.", maxChoices, a.copies)
		}
	}
	switch {
	case q.MinTokens < 0 || q.MinTokens > limit:
		return badRequest("min_tokens", "min_tokens must be between 0 and max_tokens=%d, got %d.", limit, q.MinTokens)
	case len(prompts)*a.copies > s.cfg.MaxQueue:
		return s.submitError(errQueueFull) // before memory is taken for each
	}
	plan := replyPlan{
		seed: s.cfg.Seed, max: limit, min: q.MinTokens, ignoreEOS: q.IgnoreEOS,
		natural: s.cfg.ReplyTokens, reasoning: s.cfg.ReasoningTokens, call: forcedTool(q.ToolChoice, q.Tools), vocabulary: s.vocabulary,
	}
	a.gen = newGeneration(s.pick(rank), prompts, a.copies, ns, plan)
	a.gen.stream = q.Stream
	a.created = a.gen.started.Unix()
	if a.model = q.Model; a.model == "" {
		a.model = s.cfg.AdvertiseModel
	}
	if a.id = string(ctx.Request.Header.Peek("X-Request-Id")); a.id == "" {
		a.id = hex16(s.served.Add(1) ^ s.cfg.Seed<<32)
	}
	return nil
}

// maxChoices bounds n.
const maxChoices = 128

// drop ends a request that nobody waits for: no answer, and the connection closes.
func (s *Server) drop(ctx *fasthttp.RequestCtx, peer *conn) {
	if peer != nil {
		_ = peer.Close()
	}
	ctx.SetConnectionClose()
	ctx.SetStatusCode(fasthttp.StatusInternalServerError)
}

func (s *Server) submitError(err error) *apiError {
	if errors.Is(err, errQueueFull) {
		s.refused.Add(1)
		return &apiError{status: fasthttp.StatusServiceUnavailable, typ: "ServiceUnavailableError", message: err.Error(), retryAfter: 1}
	}
	return badRequest("", "%v", err)
}

// firstToken waits until some choice has a token.
func (g *generation) firstToken() error {
	for {
		for _, c := range g.choices {
			if p := c.progress(); p.err != nil {
				return p.err
			} else if p.generated > 0 || p.done {
				return nil
			}
		}
		if err := g.wait(); err != nil {
			return err
		}
	}
}

// more appends the events that are due; true after the last one.
func (a *answer) more(dst []byte, form api, st *stream) ([]byte, bool, error) {
	for i, c := range a.gen.choices {
		p := c.progress()
		if p.err != nil {
			return dst, false, p.err
		}
		if st.dieAfter > 0 || st.hangAt > 0 {
			p.oneDelta(c)
		}
		if p.generated > 0 || p.done {
			dst = form.chunks(dst, a, st, i, p)
		}
	}
	if a.finals < len(a.gen.choices) {
		return dst, false, nil
	}
	if a.req.StreamOptions.IncludeUsage {
		dst = form.usageChunk(dst, a)
	}
	return append(dst, "data: [DONE]\n\n"...), true, nil
}
