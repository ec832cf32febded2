package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
)

// reasonUnprobed is the health of a worker that was not asked yet.
const reasonUnprobed = "not probed yet"

// maxAnnounced bounds the workers that join by announcement alone.
const maxAnnounced = 1024

// Fleet is every worker that requests may go to.
type Fleet struct {
	cfg     FleetConfig
	allow   allowList
	metrics *metrics
	changed chan struct{} // 1: the set of workers changed

	publishing sync.Mutex    // orders what the router is told; before mu and a worker's mu
	turn       atomic.Uint32 // whose turn it is to tokenize

	// dialer connects to workers; nil is TCP's. Tests in virtual time have another.
	dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	// What requests read without a lock: the workers by name, and the models that are
	// adapters.
	list     atomic.Pointer[[]*Worker]
	adapters atomic.Pointer[map[string]bool]

	mu struct {
		sync.Mutex
		byID     map[string]*Worker
		unjoined map[string]Unjoined // by announced worker id
	}
}

// Unjoined is an announced worker that is neither configured nor allowed.
type Unjoined struct {
	Worker string    `json:"worker"`
	URL    string    `json:"url"`
	Relay  string    `json:"relay"`
	Reason string    `json:"reason"`
	Seen   time.Time `json:"seen"`
}

// NewFleet returns a fleet with the configured workers. They take requests once Run has
// probed them.
func NewFleet(cfg FleetConfig) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics of the fleet: %w", err)
	}
	f := &Fleet{cfg: cfg, metrics: m, changed: make(chan struct{}, 1)}
	f.allow, _ = parseAllow(cfg.Allow)
	f.mu.byID = map[string]*Worker{}
	f.mu.unjoined = map[string]Unjoined{}
	if err := f.SetWorkers(cfg.Workers); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Fleet) newWorker(cfg WorkerConfig, announced bool) (*Worker, error) {
	base, err := parseBaseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	tls, err := cfg.tlsConfig()
	if err != nil {
		return nil, err
	}
	w := &Worker{f: f, id: cfg.id(), base: base, announced: announced, cfg: &cfg, poke: make(chan struct{}, 1), found: make(chan struct{})}
	w.pool = &pool{
		addr: base.addr, tls: tls, connect: f.cfg.Timeouts.Connect, idleLife: idleLife, max: f.cfg.MaxConns,
		dialer: f.dialer,
		onDial: func(err error) { f.metrics.dialed(w.id, err) },
	}
	w.breaker.mu.dirty = true // the router may know another worker by this name
	w.mu.reason = reasonUnprobed
	w.mu.feeds = map[int]events.FeedStatus{}
	w.mu.news = map[int]feedNews{}
	return w, nil
}

// CheckWorkers returns the error that SetWorkers would.
func (f *Fleet) CheckWorkers(workers []WorkerConfig) error { return validateWorkers(workers) }

// SetWorkers replaces the configured workers. One whose entry did not change is left
// alone; streams of a changed or removed one run to their end.
func (f *Fleet) SetWorkers(workers []WorkerConfig) error {
	if err := validateWorkers(workers); err != nil {
		return err
	}
	next := map[string]*Worker{}
	urls := map[string]bool{}
	f.mu.Lock()
	for _, cfg := range workers {
		old := f.mu.byID[cfg.id()]
		if old != nil && !old.announced && *old.cfg == cfg {
			next[old.id], urls[old.base.url] = old, true
			continue
		}
		w, err := f.newWorker(cfg, false)
		if err != nil {
			f.mu.Unlock()
			return err
		}
		if old != nil && old.base.url == w.base.url {
			w.inherit(old)
		}
		next[w.id], urls[w.base.url] = w, true
	}
	for id, w := range f.mu.byID {
		if w.announced && next[id] == nil && !urls[w.base.url] {
			next[id] = w
		}
	}
	f.mu.byID = next
	f.relistLocked()
	f.mu.Unlock()
	f.notify()
	return nil
}

// inherit takes over what is known of the same URL, so that a changed entry does not take
// the worker out until its next probe.
func (w *Worker) inherit(old *Worker) {
	old.mu.Lock()
	defer old.mu.Unlock()
	w.mu.facts, w.mu.healthy, w.mu.reason = old.mu.facts, old.mu.healthy, old.mu.reason
	w.mu.foundAt = old.mu.foundAt
	if w.mu.facts != nil {
		close(w.found)
	}
	for rank, s := range old.mu.feeds {
		w.mu.feeds[rank] = s
	}
}

// notify tells router and Run that the set of workers changed.
func (f *Fleet) notify() {
	f.publish()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Worker returns the worker of that name, nil if it has left.
func (f *Fleet) Worker(id string) *Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.byID[id]
}

// workers returns all workers by name. The list must not be changed.
func (f *Fleet) workers() []*Worker { return *f.list.Load() }

// relistLocked brings the list up to date; f.mu is held.
func (f *Fleet) relistLocked() {
	list := make([]*Worker, 0, len(f.mu.byID))
	for _, w := range f.mu.byID {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b *Worker) int { return strings.Compare(a.id, b.id) })
	f.list.Store(&list)
}

// publish tells the router who there is and how everyone is.
func (f *Fleet) publish() {
	list := f.publishWorkers()
	for _, w := range list {
		w.heard(true) // a new worker may have the name of one that was ejected
	}
}

func (f *Fleet) publishWorkers() []*Worker {
	f.publishing.Lock()
	defer f.publishing.Unlock()
	list := f.workers()
	specs := make([]router.WorkerSpec, len(list))
	adapters := map[string]bool{}
	for i, w := range list {
		specs[i] = w.spec()
		for _, m := range specs[i].Models {
			if m.Parent != "" {
				adapters[m.Name] = true
			}
		}
	}
	f.adapters.Store(&adapters)
	f.cfg.Router.SetWorkers(specs)
	for _, w := range list {
		w.mu.Lock()
		healthy, reason := w.mu.healthy, w.mu.reason
		w.mu.Unlock()
		f.cfg.Router.SetHealth(w.id, healthy, reason)
	}
	return list
}

// Run probes the workers and runs their relays until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	type life struct {
		context.Context
		cancel context.CancelFunc
	}
	running := map[*Worker]life{}
	sweep := time.NewTicker(time.Second)
	defer sweep.Stop()
	for {
		current := map[*Worker]bool{}
		for _, w := range f.workers() {
			current[w] = true
			if _, ok := running[w]; !ok {
				wctx, cancel := context.WithCancel(ctx)
				running[w] = life{wctx, cancel}
				wg.Go(func() { w.run(wctx) })
				wg.Go(func() { w.runRelay(wctx) })
			}
		}
		for w, life := range running {
			if !current[w] {
				life.cancel()
				w.pool.close()
				delete(running, w)
				if f.Worker(w.id) == nil {
					f.metrics.drop(w.id)
				}
			}
		}
		select {
		case <-ctx.Done():
			for w, life := range running {
				life.cancel()
				defer w.pool.close()
			}
			wg.Wait()
			return nil
		case <-f.changed:
		case now := <-sweep.C:
			f.forget(now)
			for w, life := range running {
				if w.tendBreaker(now) {
					wg.Go(func() { w.tryOut(life) })
				}
				w.reportFeeds(now)
				w.reportMissing(now)
				w.pool.sweep(now)
				open, _ := w.pool.stats()
				f.metrics.conns.WithLabelValues(w.id).Set(float64(open))
			}
		}
	}
}

// Models returns the models that some worker is known to serve, each once.
func (f *Fleet) Models() []ModelInfo {
	seen := map[string]bool{}
	var list []ModelInfo
	for _, w := range f.workers() {
		facts := w.known()
		if facts == nil {
			continue
		}
		for _, m := range facts.models {
			if !seen[m.ID] {
				seen[m.ID] = true
				list = append(list, m)
			}
		}
	}
	slices.SortFunc(list, func(a, b ModelInfo) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// ModelInfo is one served model, an entry of /v1/models.
type ModelInfo struct {
	ID          string `json:"id"`
	Parent      string `json:"parent"`        // base model of an adapter
	MaxModelLen int    `json:"max_model_len"` // 0 if the worker does not say
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root"` // path or id that the engine was started with, of an adapter its own
}

// LoRA tells whether the model is an adapter on some worker: its KV cache is its own.
func (f *Fleet) LoRA(name string) bool { return (*f.adapters.Load())[name] }

// Ranks returns the most data-parallel ranks that a healthy worker of the model has, 0
// where there is none.
func (f *Fleet) Ranks(model string) (n int) {
	for _, w := range f.workers() {
		if w.serves(model) {
			n = max(n, w.ranks(w.known()))
		}
	}
	return n
}

// Ready says whether a request could be routed now, and what is wrong in whole or in
// part: what keeps a worker out, or what makes routing less exact.
func (f *Fleet) Ready() (ready bool, degraded []string) {
	list := f.workers()
	for _, w := range list {
		w.mu.Lock()
		healthy, reason := w.mu.healthy, w.mu.reason
		w.mu.Unlock()
		if healthy {
			ready = true
			if _, reason := w.breaker.standing(); reason != "" {
				degraded = append(degraded, fmt.Sprintf("worker %s is avoided: %s", w.id, reason))
			}
		} else {
			prefix := "worker " + w.id + ": " // of most errors
			degraded = append(degraded, prefix+strings.TrimPrefix(reason, prefix))
		}
	}
	degraded = append(degraded, f.cfg.Local.Degraded()...)
	if len(list) == 0 {
		degraded = append(degraded, "no workers are configured or announced")
	}
	return ready, degraded
}

// errNoTokenizer says that no worker can tokenize for a model now.
var errNoTokenizer = errors.New("no healthy worker of this model has a tokenizer endpoint")
