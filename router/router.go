package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// Mode is the rule that chooses among the candidates. Every mode books and measures
// alike, so that runs of two modes compare.
type Mode string

// The modes.
const (
	ModeKV          Mode = "kv"           // lowest cost
	ModeRoundRobin  Mode = "round-robin"  // one after the other
	ModeRandom      Mode = "random"       // uniform
	ModeLeastLoaded Mode = "least-loaded" // fewest requests in flight
)

const (
	defaultMaxInflight   = 1024
	defaultMaxQueue      = 4096
	defaultMaxQueueDelay = 10 * time.Second
	maxModels            = 64   // measured models kept beyond those served
	maxWaitingFeeds      = 4096 // feeds told of ranks that are not in the fleet yet
	maxDecisions         = 256  // decisions kept for people
)

// Config says how a Router works. Zero values mean the defaults.
type Config struct {
	Mode        Mode        // ModeKV by default
	MaxInflight int         // requests in flight per worker, 1024; more wait
	Index       *index.Set  // who holds which prefix; required
	Workers     *kv.Workers // the numbers of worker ranks, shared with the feed; required
	Seed        uint64      // of random choices; 0: random
	Now         func() time.Time
	Registerer  prometheus.Registerer // nil: metrics are not registered
	Logger      *slog.Logger          // decisions at level debug; nil: none

	// MaxQueue bounds the requests that wait for a slot, or first turns for KV room,
	// 4096. More are refused, the tenant first that has most waiting. Negative: nobody
	// waits, and first turns need no room.
	MaxQueue int
	// MaxQueueDelay bounds how long a request waits, 10 s; then it is refused.
	MaxQueueDelay time.Duration

	// OnStaleHits is called when a rank has reported fewer cached tokens than its
	// events promised three times in a row: its index is wrong. No lock is held.
	OnStaleHits func(kv.WorkerRank)

	// Copies says that somebody copies hot heads to idle workers (Decision.Copy): their
	// rent then pays for that, too.
	Copies bool

	// OnBooking is called when Bookings has something to tell of that it had not
	// before. The router's lock is held: it must only signal. nil: this proxy tells no
	// peer of its bookings.
	OnBooking func()
}

// Validate reports a mode that does not exist or a missing dependency.
func (c *Config) Validate() error {
	switch c.Mode {
	case "", ModeKV, ModeRoundRobin, ModeRandom, ModeLeastLoaded:
	default:
		return fmt.Errorf("mode %q is not one of kv, round-robin, random, least-loaded", c.Mode)
	}
	if c.MaxInflight < 0 {
		return fmt.Errorf("max_inflight %d is negative; 0 means %d", c.MaxInflight, defaultMaxInflight)
	}
	if c.MaxQueueDelay < 0 {
		return fmt.Errorf("max_queue_delay %v is negative; 0 means %v", c.MaxQueueDelay, defaultMaxQueueDelay)
	}
	if c.Index == nil || c.Workers == nil {
		return errors.New("router needs an index and worker numbers")
	}
	return nil
}

// Request is what Route reads of one request. The router keeps nothing of the prompt
// but hashes and counts.
type Request struct {
	Model            string     // served name, aliases resolved
	Key              string     // tenant: name of the API key; "" is one tenant
	Prompt           *kv.Prompt // nil or SourceNone: routed by load alone
	MaxTokens        int        // ≤ 0: not given
	OutputTokensHint int        // ≤ 0: not given
	FirstTurn        bool       // no assistant message yet
	Priority         int        // less is more urgent where requests wait: below 0, 0, above 0
	Stream           bool       // the first token will be seen
	PinWorker        string     // "": any
	PinRank          int        // −1: any
	Exclude          []string   // worker ids that were tried already

	// Speculative marks the warm-up of a turn that is yet to come. It is nobody's
	// request: it counts in no metric, limit, memory or cost. Its owner ends it when a
	// client's request comes to its rank.
	Speculative bool
}

// The errors of Route, besides *SaturatedError and those of the context.
var (
	// ErrUnknownModel says that no worker serves the model.
	ErrUnknownModel = errors.New("model is not served by any worker")
	// ErrNoWorkers says that workers serve the model but none can take the request.
	ErrNoWorkers = errors.New("no usable worker")
)

// SaturatedError says that every candidate is at its limit of requests in flight, or
// that the queue had no place or no turn for the request.
type SaturatedError struct {
	Limit      int           // the smallest limit among them; 0: not what stood in the way
	RetryAfter time.Duration // until about one request will have ended; whole seconds

	why string // "": the limit
}

func (e *SaturatedError) Error() string {
	if e.why != "" {
		return fmt.Sprintf("%s; retry in %v", e.why, e.RetryAfter)
	}
	return fmt.Sprintf("every worker is at its limit of requests in flight (max_inflight %d); retry in %v", e.Limit, e.RetryAfter)
}

// Router chooses workers and keeps their load. It is safe for concurrent use.
type Router struct {
	cfg     Config
	epoch   time.Time
	fleet   atomic.Pointer[fleet]
	scratch sync.Pool
	expect  *expectations
	talks   *conversations
	metrics *metrics

	mu struct {
		sync.Mutex
		workers map[string]*worker
		models  map[string]*model
		feeds   map[kv.WorkerRank]Feed // of ranks that are not in the fleet yet
		rand    *rand.Rand
		aside   *rand.Rand // of what is no client's request, so that looking changes nobody's choice
		nextID  uint64
		recent  [maxDecisions]*Decision
		rents   rents
		queue   queue
		leaving []*rank // that nothing holds any more

		exchange exchange
	}
}

// New returns a Router without workers. It panics where Config.Validate fails.
func New(cfg Config) *Router {
	if err := cfg.Validate(); err != nil {
		panic("BUG: " + err.Error())
	}
	if cfg.Mode == "" {
		cfg.Mode = ModeKV
	}
	if cfg.MaxInflight == 0 {
		cfg.MaxInflight = defaultMaxInflight
	}
	if cfg.MaxQueue == 0 {
		cfg.MaxQueue = defaultMaxQueue
	}
	if cfg.MaxQueueDelay == 0 {
		cfg.MaxQueueDelay = defaultMaxQueueDelay
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	r := &Router{cfg: cfg, epoch: cfg.Now()}
	r.mu.workers = map[string]*worker{}
	r.mu.models = map[string]*model{}
	r.mu.feeds = map[kv.WorkerRank]Feed{}
	r.mu.queue.lanes = map[string]*lane{}
	r.mu.rand = rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15))
	r.mu.aside = rand.New(rand.NewPCG(cfg.Seed, 0xa51de))
	r.scratch.New = func() any { return new(scratch) }
	r.expect = newExpectations(maxExpectations)
	r.talks = newConversations(maxConversations)
	r.fleet.Store(&fleet{})
	r.metrics = newMetrics(r, cfg.Registerer)
	return r
}

// nanos is t on the router's own monotonic scale.
func (r *Router) nanos(t time.Time) int64 { return int64(t.Sub(r.epoch)) }

// Route chooses a worker and books the request on it. Whoever gets the lease calls
// its Done. Where no worker has a slot free, or the request begins a conversation and live
// ones fill the KV caches, it waits for its turn, at most for MaxQueueDelay.
func (r *Router) Route(ctx context.Context, req *Request) (*Lease, error) {
	l, v, err := r.Enter(ctx, req)
	if v != nil {
		return v.wait(ctx)
	}
	return l, err
}

// place routes req or gives it a place in the queue. v is the place that it has had.
func (r *Router) place(ctx context.Context, req *Request, v *Waiter) (*Lease, *Waiter, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		f := r.fleet.Load()
		l, waits, err := r.route(ctx, f, req, v)
		if err != nil && errors.Is(err, ErrNoWorkers) && r.fleet.Load() != f {
			continue // the fleet changed meanwhile
		}
		return l, waits, err
	}
}

func (r *Router) route(ctx context.Context, f *fleet, req *Request, v *Waiter) (*Lease, *Waiter, error) {
	to, err := f.serving(req.Model)
	if err != nil {
		return nil, nil, err
	}
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	defer s.release()
	q := r.query(s, to, req)

	r.mu.Lock()
	var kept *worker
	if v != nil {
		kept = v.slot
	}
	if waits, err := r.admitLocked(&q, v); waits != nil || err != nil {
		r.settleNewLocked(f)
		r.mu.Unlock()
		return nil, waits, err
	}
	d, chosen, err := r.chooseLocked(&q)
	if err != nil {
		var waits *Waiter
		if full, ok := err.(*SaturatedError); ok {
			waits, err = r.fullLocked(&q, v, full)
			r.settleNewLocked(f)
		}
		r.mu.Unlock()
		return nil, waits, err
	}
	if v != nil {
		d.Waited = q.now.Sub(v.since).Seconds()
	}
	l := r.bookLocked(&q, d, chosen)
	if kept != nil && kept != chosen.worker {
		r.settleLocked(kept) // the place there is free
	}
	r.mu.Unlock()

	if v != nil {
		r.metrics.waited(v.class, d.Waited)
	}
	if q.returning {
		r.talks.returned(q.talk.end)
	}
	if l.exact > 0 {
		r.cfg.Index.Exact(l.blockSize).Touch(chosen.num, l.chain[:l.exact])
	}
	if !req.Speculative {
		r.metrics.routed(&q, d)
	}
	if r.cfg.Logger != nil && r.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		r.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "routed", slog.String("decision", d.ID), slog.String("table", d.Explain()))
	}
	return l, nil, nil
}

// serving returns who serves a model.
func (f *fleet) serving(model string) (*served, error) {
	to := f.models[model]
	switch {
	case to != nil:
		return to, nil
	case len(f.models) == 0 || f.unknown:
		return nil, fmt.Errorf("%w for model %q: %s", ErrNoWorkers, model, f.why())
	}
	return nil, fmt.Errorf("model %q: %w", model, ErrUnknownModel)
}

// query gathers what the choice for req reads besides the state of the workers.
func (r *Router) query(s *scratch, to *served, req *Request) query {
	q := query{req: req, to: to, overlaps: s, now: r.cfg.Now()}
	s.match(r, to, req.Prompt)
	if !req.Speculative {
		q.talk, q.returning = r.talks.find(req, s)
	}
	q.tau = r.talks.tau()
	q.first = req.FirstTurn && !q.returning
	q.output, q.turns = r.expect.get(req)
	if !q.first {
		q.turns = 1
	}
	return q
}

// refusal names the metric label of an error of Route.
func refusal(err error) string {
	var full *SaturatedError
	if errors.As(err, &full) {
		return "saturated"
	}
	if errors.Is(err, ErrUnknownModel) {
		return "unknown_model"
	}
	return "no_workers"
}
