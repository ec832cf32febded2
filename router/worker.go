package router

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// WorkerSpec describes one worker: one engine behind one URL. Unknown limits are 0
// and switch off the terms that need them.
type WorkerSpec struct {
	ID             string
	Models         []ModelSpec // served models; none: not probed yet, so no candidate
	Ranks          int         // data-parallel ranks; 0 means 1
	BlockSize      int         // tokens of one KV block, until its feed tells
	CapacityTokens int         // KV tokens that fit in one rank
	MaxNumSeqs     int         // sequences that one rank runs at once
	MaxInflight    int         // requests of all ranks; 0: Config.MaxInflight
	Engine         string      // "vllm", "sglang", …; for people
	Drafts         bool        // decodes with drafts: the last block of a cached prefix is computed again
}

// ModelSpec is one served model name; an adapter names its base model as Parent.
type ModelSpec struct {
	Name, Parent string
}

// base returns the model whose weights the worker runs: adapters share its speed.
func (s *WorkerSpec) base() string {
	for _, m := range s.Models {
		if m.Parent == "" {
			return m.Name
		}
	}
	if len(s.Models) > 0 {
		return s.Models[0].Parent
	}
	return ""
}

// Feed is what is known of the KV event feed of one worker rank.
type Feed struct {
	State     string // FeedNone, FeedPartial, FeedComplete or FeedStale
	Reason    string // why it is not complete, for people
	BlockSize int    // tokens of one block as events tell it; 0: not known
}

// The states of a Feed. Any other state counts as FeedNone.
const (
	FeedNone     = "none"     // no events: overlap from the approximate index
	FeedPartial  = "partial"  // blocks may be missing: the larger of exact and approximate
	FeedComplete = "complete" // exact
	FeedStale    = "stale"    // silent or resyncing: the last exact state stands
)

// worker is one engine. Fields are guarded by Router.mu.
type worker struct {
	spec     WorkerSpec
	base     *model
	ranks    []*rank
	healthy  bool
	reason   string // why it is not healthy
	draining bool
	warming  bool // its cache is being filled: requests go elsewhere if they can
	breaker  Breaker
	inflight int
	called   int // places kept for requests that leave the queue
}

func (w *worker) maxInflight(def int) int {
	if w.spec.MaxInflight > 0 {
		return w.spec.MaxInflight
	}
	return def
}

// model holds what is measured per base model. Guarded by Router.mu, but for itl.
type model struct {
	name      string
	rate      rate
	itl       *itlFit
	intercept intercept

	ranks    []*rank // of the fleet
	promised float64 // KV tokens of first turns that leave the queue
	idle     idle    // guarded by conversations.mu
}

// rank is one KV cache: the unit that is scored, booked and indexed. Fields are
// guarded by Router.mu, but for the atomics.
type rank struct {
	worker *worker
	name   kv.WorkerRank
	num    kv.Worker
	label  string
	holds  int  // fleet membership and leases; the number is released at 0
	gone   bool // no longer in the fleet
	feed   Feed

	prefill  []*Lease // booked and not past the first token, oldest first
	booked   float64  // their uncached tokens
	prompts  int64    // prompt tokens of sequences in flight, each in full
	headFrom time.Time
	inflight int
	rate     rate
	window   rateWindow
	stale    int       // reports below the predicted overlap, in a row
	extendAt time.Time // when predictions of the prefill queue must be extended

	joined  int64     // Router.nanos
	busy    meter     // somebody waits for a first token
	drainAt time.Time // when all that is booked should be computed

	warm       []*Lease  // warm-ups in flight, oldest first
	warmTokens float64   // their uncached tokens
	warmFrom   time.Time // since when the oldest is the oldest
	warmed     meter     // warm is not empty

	peers peerLoad // what others have booked, a part of the load above and below

	held distinct // KV tokens of our own sequences in flight, shared prefixes once

	kvTokens  atomic.Int64 // KV tokens of sequences in flight, each in full
	sequences atomic.Int64 // inflight, for Progress
	calmSince atomic.Int64 // Router.nanos since when nothing is booked; notCalm otherwise
}

const notCalm = math.MaxInt64

func (k *rank) blockSize() int {
	switch {
	case k.feed.BlockSize > 0:
		return k.feed.BlockSize
	case k.worker.spec.BlockSize > 0:
		return k.worker.spec.BlockSize
	}
	return kv.DefaultBlockSize
}

// exact tells whether the events of the rank are worth reading.
func (k *rank) exact() bool {
	return k.feed.State == FeedComplete || k.feed.State == FeedPartial || k.feed.State == FeedStale
}

// fleet is an immutable view of who serves what.
type fleet struct {
	models  map[string]*served
	unknown bool // a worker whose models are not known yet exists
}

// why tells why a model may be missing for a while.
func (f *fleet) why() string {
	if f.unknown {
		return "a worker has not told its models yet"
	}
	return "the fleet is empty"
}

// served are the ranks that serve one model name, by worker id and rank.
type served struct {
	ranks      []*rank
	blockSizes []int    // distinct
	bases      []*model // distinct
	text       bool     // a rank is scored by the approximate index
	turn       atomic.Uint64
}

// SetWorkers replaces the fleet. Bookings, measured rates and health of workers that
// stay are kept; leases of removed ones remain valid.
func (r *Router) SetWorkers(specs []WorkerSpec) {
	defer r.sweep()
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.mu.workers
	r.mu.workers = make(map[string]*worker, len(specs))
	for _, s := range specs {
		if s.ID == "" || r.mu.workers[s.ID] != nil {
			continue // the fleet's owner reports a name that is missing or twice
		}
		s.Models = slices.Clone(s.Models)
		w := old[s.ID]
		if w == nil {
			w = &worker{healthy: true}
		}
		delete(old, s.ID)
		w.spec = s
		w.base = r.modelLocked(s.base())
		r.resizeLocked(w, max(s.Ranks, 1))
		r.mu.workers[s.ID] = w
	}
	for _, w := range old {
		r.resizeLocked(w, 0)
	}
	r.forgetModelsLocked()
	r.publishLocked()
	r.settleLocked(nil)
}

// resizeLocked gives w n ranks.
func (r *Router) resizeLocked(w *worker, n int) {
	for len(w.ranks) > n {
		last := len(w.ranks) - 1
		w.ranks[last].gone = true
		r.keepFeedLocked(w.ranks[last].name, w.ranks[last].feed)
		r.releaseLocked(w.ranks[last])
		w.ranks = w.ranks[:last]
	}
	for i := len(w.ranks); i < n; i++ {
		name := kv.WorkerRank{ID: w.spec.ID, Rank: i}
		k := &rank{worker: w, name: name, num: r.cfg.Workers.Hold(name), label: name.String(), holds: 1, joined: r.nanos(r.cfg.Now())}
		k.feed.State = FeedNone
		if f, ok := r.mu.feeds[name]; ok {
			k.feed = f
			delete(r.mu.feeds, name)
		}
		k.calmSince.Store(r.nanos(r.cfg.Now()))
		w.ranks = append(w.ranks, k)
	}
}

// releaseLocked ends one hold of k. Whoever calls it calls sweep without the lock.
func (r *Router) releaseLocked(k *rank) {
	if k.holds--; k.holds == 0 {
		r.mu.leaving = append(r.mu.leaving, k)
	}
}

// sweep gives back the numbers of ranks that nothing holds any more. A number may name
// another rank afterwards, so what the router has learned under it goes first, unless
// the same rank is in the fleet again.
func (r *Router) sweep() {
	r.mu.Lock()
	leaving := r.mu.leaving
	r.mu.leaving = nil
	var drop []kv.Worker
	for _, k := range leaving {
		if w := r.mu.workers[k.name.ID]; w == nil || k.name.Rank >= len(w.ranks) {
			drop = append(drop, k.num)
		}
	}
	r.mu.Unlock()
	for _, n := range drop {
		r.cfg.Index.Approximate().Drop(n)
		r.cfg.Index.Predicted().Drop(n)
	}
	for _, k := range leaving {
		r.cfg.Workers.Release(k.num)
	}
}

func (r *Router) modelLocked(name string) *model {
	m := r.mu.models[name]
	if m == nil {
		m = &model{name: name, itl: newITLFit(), intercept: intercept{startIntercept}, idle: newIdle()}
		r.mu.models[name] = m
	}
	return m
}

// forgetModelsLocked bounds the models that no worker serves any more.
func (r *Router) forgetModelsLocked() {
	if len(r.mu.models) <= maxModels {
		return
	}
	used := map[*model]bool{}
	for _, w := range r.mu.workers {
		used[w.base] = true
	}
	for name, m := range r.mu.models {
		if !used[m] {
			delete(r.mu.models, name)
		}
	}
}

// publishLocked makes the view that Route reads.
func (r *Router) publishLocked() {
	f := &fleet{models: map[string]*served{}}
	ids := make([]string, 0, len(r.mu.workers))
	for id := range r.mu.workers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, m := range r.mu.models {
		m.ranks = nil
	}
	before := r.fleet.Load()
	for _, id := range ids {
		w := r.mu.workers[id]
		w.base.ranks = append(w.base.ranks, w.ranks...)
		f.unknown = f.unknown || len(w.spec.Models) == 0
		for _, m := range w.spec.Models {
			s := f.models[m.Name]
			if s == nil {
				s = &served{}
				if before != nil && before.models[m.Name] != nil {
					s.turn.Store(before.models[m.Name].turn.Load())
				}
				f.models[m.Name] = s
			}
			if n := len(s.ranks); n > 0 && s.ranks[n-1].worker == w {
				continue // the worker lists the name twice
			}
			if !slices.Contains(s.bases, w.base) {
				s.bases = append(s.bases, w.base)
			}
			for _, k := range w.ranks {
				s.ranks = append(s.ranks, k)
				if bs := k.blockSize(); !slices.Contains(s.blockSizes, bs) {
					s.blockSizes = append(s.blockSizes, bs)
				}
				if k.feed.State != FeedComplete && k.feed.State != FeedStale {
					s.text = true
				}
			}
		}
	}
	r.fleet.Store(f)
}

// SetHealth tells whether a worker can serve; reason says why not. A new worker is
// healthy. An unknown id is ignored.
func (r *Router) SetHealth(id string, healthy bool, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[id]; w != nil {
		w.healthy, w.reason = healthy, reason
		r.settleLocked(w)
	}
}

// SetDraining tells whether a worker takes no more requests. An unknown id is
// ignored.
func (r *Router) SetDraining(id string, draining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[id]; w != nil {
		w.draining = draining
		r.settleLocked(w)
	}
}

// SetWarming tells whether a worker's cache is being filled. Requests of clients go to
// others that can take them meanwhile; where there are none it serves like any other. An
// unknown id is ignored.
func (r *Router) SetWarming(id string, warming bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[id]; w != nil {
		w.warming = warming
		r.settleLocked(w)
	}
}

// SetFeed tells the state of a rank's event feed. The state of a rank that is not in
// the fleet yet is kept for it.
func (r *Router) SetFeed(name kv.WorkerRank, f Feed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[name.ID]; w != nil && name.Rank >= 0 && name.Rank < len(w.ranks) {
		if k := w.ranks[name.Rank]; k.feed != f {
			k.feed = f
			k.stale = 0
			r.publishLocked()
		}
		return
	}
	r.keepFeedLocked(name, f)
}

// keepFeedLocked remembers the feed of a rank that is not in the fleet.
func (r *Router) keepFeedLocked(name kv.WorkerRank, f Feed) {
	if f.State == FeedNone {
		delete(r.mu.feeds, name)
	} else if len(r.mu.feeds) < maxWaitingFeeds {
		r.mu.feeds[name] = f
	}
}

// Models returns the served model names, sorted.
func (r *Router) Models() []string {
	f := r.fleet.Load()
	names := make([]string, 0, len(f.models))
	for name := range f.models {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
