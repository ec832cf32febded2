package upstream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
)

// Worker is one engine behind one URL.
type Worker struct {
	f         *Fleet
	id        string
	base      baseURL
	pool      *pool
	announced bool // known by a NATS announcement alone

	cfg          *WorkerConfig // never changes; a reload makes another Worker
	tok          tokenizer
	usageMissing atomic.Int32
	breaker      breaker
	poke         chan struct{} // asks for a health check at once
	found        chan struct{} // closed by the first probe that succeeds

	mu struct {
		sync.Mutex
		facts   *facts // nil until the first probe
		foundAt time.Time
		healthy bool
		reason  string // why not
		feeds   map[int]events.FeedStatus
		news    map[int]feedNews // by rank, of the state in feeds
		relay   *events.Relay
		silent  bool      // the missing feed was reported
		seen    time.Time // last announcement
	}
}

// ID returns the worker's stable name.
func (w *Worker) ID() string { return w.id }

// ReportsUsage tells whether the engine is known to take stream_options.include_usage.
func (w *Worker) ReportsUsage() bool {
	switch w.engine() {
	case EngineVLLM, EngineSGLang, EngineLlamaCPP:
		return true
	}
	return false
}

func (w *Worker) engine() string {
	if f := w.known(); f != nil {
		return f.engine
	}
	return w.cfg.Engine
}

// style returns how the worker's engine renders a chat.
func (w *Worker) style() prompt.Style {
	if f := w.known(); f != nil {
		return prompt.StyleOf(f.engine).At(f.version)
	}
	return prompt.StyleOf(w.cfg.Engine)
}

// known returns the facts of the last probe, nil before the first.
func (w *Worker) known() *facts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.facts
}

// serves tells whether the worker is healthy and has the model.
func (w *Worker) serves(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.healthy && w.mu.facts != nil &&
		slices.ContainsFunc(w.mu.facts.models, func(m ModelInfo) bool { return m.ID == name })
}

// ranks returns the number of data-parallel ranks.
func (w *Worker) ranks(f *facts) int {
	n := w.cfg.Ranks
	if n == 0 && f != nil {
		n = f.ranks
	}
	return min(max(n, 1), maxRanks)
}

// spec is the worker as the router sees it.
func (w *Worker) spec() router.WorkerSpec {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.mu.facts
	s := router.WorkerSpec{
		ID: w.id, Ranks: w.ranks(f), BlockSize: w.cfg.BlockSize, CapacityTokens: w.cfg.CapacityTokens,
		MaxNumSeqs: w.cfg.MaxNumSeqs, MaxInflight: w.cfg.MaxInflight, Engine: w.cfg.Engine,
	}
	if f == nil {
		return s
	}
	s.Engine, s.Drafts = f.engine, f.drafts
	s.BlockSize = first(s.BlockSize, f.blockSize)
	s.CapacityTokens = first(s.CapacityTokens, f.capacityTokens)
	s.MaxNumSeqs = first(s.MaxNumSeqs, f.maxNumSeqs)
	for _, m := range f.models {
		s.Models = append(s.Models, router.ModelSpec{Name: m.ID, Parent: m.Parent})
	}
	return s
}

// probeEvery is how often a healthy worker is asked for everything again: models and
// adapters come and go, capacity changes with a restart.
const probeEvery = 30 * time.Second

// run keeps the worker's health and facts up to date until ctx ends.
func (w *Worker) run(ctx context.Context) {
	failures := 0
	var probed time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.poke:
		}
		var err error
		if w.known() == nil || !w.isHealthy() || time.Since(probed) >= probeEvery {
			if err = w.refresh(ctx); err == nil {
				probed = time.Now()
			}
		} else {
			err = w.check(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.f.metrics.probeErrors.WithLabelValues(w.id).Inc()
			var e *Error
			refused := errors.As(err, &e) && e.Phase == PhaseConnect
			if failures++; failures >= 2 || refused || w.known() == nil {
				w.setHealth(false, err.Error())
			}
		} else {
			failures = 0
			w.setHealth(true, "")
		}
		select {
		case <-w.poke: // by this very check, or answered by it
		default:
		}
		timer.Reset(w.interval(failures))
	}
}

// interval returns the time to the next check. An engine whose check costs it something
// is asked less often; a sick worker is asked often at first, then every 5 s.
func (w *Worker) interval(failures int) time.Duration {
	d := w.f.cfg.Probe
	if failures > 0 {
		return min(d/4<<min(failures, 8), 5*time.Second)
	}
	switch w.engine() {
	case EngineSGLang:
		return 5 * d / 2
	case EngineOpenAI, "":
		return 5 * d
	}
	return d
}

// refresh probes the worker and passes what changed to router and relay.
func (w *Worker) refresh(ctx context.Context) error {
	f, err := w.probe(ctx)
	if err != nil {
		return err
	}
	if f.health == "/health" { // /v1/models answers while the engine behind it is dead
		if err := w.checkPath(ctx, f.health); err != nil {
			return err
		}
	}
	w.mu.Lock()
	old := w.mu.facts
	w.mu.facts = f
	if old == nil {
		w.mu.foundAt = time.Now()
	}
	relay := w.mu.relay
	w.mu.Unlock()
	if relay != nil {
		relay.SetInfo(f.info(w.cfg))
	}
	if old == nil {
		close(w.found)
		w.f.cfg.Logger.Info("worker found", "worker", w.id, "url", w.base.url, "engine", f.engine, "version", f.version,
			"models", len(f.models), "ranks", w.ranks(f), "block_size", f.blockSize, "capacity_tokens", f.capacityTokens)
		for _, flag := range f.flags {
			w.f.cfg.Logger.Warn("worker could do better", "worker", w.id, "fix", flag)
		}
	}
	w.offerModels(f)
	w.f.publish()
	w.tellMissing()
	return nil
}

// offerModels tells the local tokenizers what the worker serves. An adapter has its base
// model's tokenizer.
func (w *Worker) offerModels(f *facts) {
	for _, m := range f.models {
		root := m.Root
		for _, base := range f.models {
			if m.Parent != "" && base.ID == m.Parent {
				root = base.Root
			}
		}
		w.f.cfg.Local.Offer(m.ID, root, w.style())
	}
}

// check asks the endpoint that does not make the engine generate. SGLang's /health does.
func (w *Worker) check(ctx context.Context) error { return w.checkPath(ctx, w.known().health) }

func (w *Worker) checkPath(ctx context.Context, path string) error {
	code, _, err := w.fetch(ctx, fasthttp.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return checkStatus(w.id, path, code)
}

func (w *Worker) isHealthy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.healthy
}

// setHealth tells the router of a change, records it and logs it once. The router hears of
// it first: who reads that a worker is healthy may send it a request at once.
func (w *Worker) setHealth(healthy bool, reason string) {
	f := w.f
	f.publishing.Lock()
	w.mu.Lock()
	changed := w.mu.healthy != healthy || w.mu.reason != reason
	turned := w.mu.healthy != healthy || !healthy && w.mu.reason == reasonUnprobed
	w.mu.Unlock()
	if changed && f.Worker(w.id) == w { // else it has left
		if healthy && f.cfg.OnHealthy != nil {
			f.cfg.OnHealthy(w.id)
		}
		f.cfg.Router.SetHealth(w.id, healthy, reason)
	}
	w.mu.Lock()
	w.mu.healthy, w.mu.reason = healthy, reason
	w.mu.Unlock()
	if changed && !healthy {
		w.breaker.reset(time.Now())
		w.tellBreaker()
	}
	f.publishing.Unlock()
	if f.Worker(w.id) == w {
		f.metrics.setHealthy(w.id, healthy)
	}
	if !turned {
		return
	}
	if healthy {
		f.cfg.Logger.Info("worker is healthy", "worker", w.id, "url", w.base.url)
	} else {
		f.cfg.Logger.Warn("worker is unreachable or unwell: no requests go to it until a check succeeds",
			"worker", w.id, "url", w.base.url, "reason", reason)
	}
}

// connectFailed takes the worker out at once: a request just proved that it is not there.
// A timeout may be the network's or a full backlog; the check decides.
func (w *Worker) connectFailed(e *Error) {
	if e.Limit == "" && w.known() != nil {
		w.setHealth(false, e.Error())
	}
	select {
	case w.poke <- struct{}{}:
	default:
	}
}
