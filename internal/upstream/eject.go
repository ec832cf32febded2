package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"
)

// askTimeout is how long one token may take of a worker that is suspected or tried out.
const askTimeout = 5 * time.Second

// tendBreaker moves the worker's breaker on and tells whether tryOut is to be called.
func (w *Worker) tendBreaker(now time.Time) (ask bool) {
	if !w.isHealthy() {
		return false // health checks bring it back, and forget what was
	}
	ask, changed := w.breaker.tick(now)
	w.heard(changed)
	return ask
}

// tryOut finds out whether the worker generates.
func (w *Worker) tryOut(ctx context.Context) {
	v, what := w.generate(ctx)
	w.heard(w.breaker.answered(v, time.Now(), what))
}

// generate makes the engine generate one token by the way that a client's request takes.
// An endpoint that is no engine of the user's would bill it, so it is not asked.
func (w *Worker) generate(ctx context.Context) (v verdict, what string) {
	facts := w.known()
	if facts == nil {
		return unable, ""
	}
	switch facts.engine {
	case EngineVLLM, EngineSGLang, EngineLlamaCPP:
	default:
		return unable, ""
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	code, _, err := w.fetch(ctx, fasthttp.MethodPost, "/v1/completions", oneToken(facts.baseModel()))
	switch {
	case err != nil && ctx.Err() == context.DeadlineExceeded:
		return broken, fmt.Sprintf("one token took longer than %s", askTimeout)
	case err != nil:
		return broken, err.Error()
	case code == fasthttp.StatusOK:
		return generates, ""
	case code >= 500 && code != fasthttp.StatusNotImplemented:
		return broken, fmt.Sprintf("it answered %d", code)
	}
	return unable, "" // no such endpoint, or not without a client's key
}

// oneToken returns a completion request for one token. Its prompt fills no block of a cache.
func oneToken(model string) []byte {
	name, _ := json.Marshal(model) // a string has JSON
	return append(append([]byte(`{"model":`), name...), `,"prompt":"0","max_tokens":1,"temperature":0,"stream":false}`...)
}

// baseModel returns the first model that is no adapter.
func (f *facts) baseModel() string {
	for _, m := range f.models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return f.models[0].ID
}

// heard tells router, metrics and log of a breaker that has changed.
func (w *Worker) heard(changed bool) {
	if !changed {
		return
	}
	f := w.f
	f.publishing.Lock()
	n := w.tellBreaker()
	f.publishing.Unlock()
	switch log := f.cfg.Logger; {
	case n.ejected != "":
		log.Warn("worker is ejected: its requests go elsewhere if others are there, until it answers", "worker", w.id, "url", w.base.url, "reason", n.router.Reason)
	case n.back:
		log.Info("worker answers again", "worker", w.id, "url", w.base.url)
	}
}

// tellBreaker tells router and metrics what is new of the breaker; f.publishing is held.
func (w *Worker) tellBreaker() (n news) {
	f := w.f
	if f.Worker(w.id) != w { // it has left, and its series with it
		return n
	}
	n, changed := w.breaker.flush()
	if !changed {
		return n
	}
	f.cfg.Router.SetBreaker(w.id, n.router)
	f.metrics.breaker.WithLabelValues(w.id).Set(float64(n.state))
	if n.ejected != "" {
		f.metrics.ejections.WithLabelValues(w.id, n.ejected).Inc()
	}
	return n
}
