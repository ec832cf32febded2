package sim

import "github.com/valyala/fasthttp"

// vllmRoute returns the handler of a path that only vLLM has, and whether it wants a
// POST.
func (s *Server) vllmRoute(path string) (handler func(*fasthttp.RequestCtx), post bool) {
	switch path {
	case "/health", "/ping":
		return s.serveHealth, false
	case "/version":
		return func(ctx *fasthttp.RequestCtx) { s.json(ctx, object{"version": s.cfg.Version}) }, false
	case "/reset_prefix_cache":
		return func(ctx *fasthttp.RequestCtx) { s.json(ctx, object{"success": s.clear()}) }, true
	case "/v1/chat/completions/render", "/v1/completions/render":
		if s.cfg.NoTokenize || s.cfg.NoRender {
			return nil, true
		}
		var form api = completionAPI{}
		if path == "/v1/chat/completions/render" {
			form = chatAPI{}
		}
		return func(ctx *fasthttp.RequestCtx) { s.serveRender(ctx, form) }, true
	}
	return nil, false
}

// serveHealth says that the engine is alive without asking it to generate.
func (s *Server) serveHealth(ctx *fasthttp.RequestCtx) {
	if f := s.faults.Load(); f.HealthStatus != 0 {
		ctx.SetStatusCode(f.HealthStatus)
	}
}

// clear empties the prefix cache of each rank that is idle; false if any is not. What
// the engine says of it is published as its personality has it: vLLM in its next step,
// SGLang at once.
func (s *Server) clear() bool {
	ok := true
	for _, r := range s.ranks {
		r.mu.Lock()
		ok = r.mu.engine.Clear() && ok
		r.mu.Unlock()
		r.signal()
	}
	return ok
}
