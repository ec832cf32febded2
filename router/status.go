package router

import (
	"slices"
	"strings"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// WorkerStatus is what the router knows of one worker rank.
type WorkerStatus struct {
	Worker         string     `json:"worker"`
	Rank           int        `json:"rank"`
	Engine         string     `json:"engine,omitempty"`
	Models         []string   `json:"models"`
	Healthy        bool       `json:"healthy"`
	HealthReason   string     `json:"health_reason,omitempty"`
	Draining       bool       `json:"draining"`
	Warming        bool       `json:"warming,omitempty"`        // its cache is being filled before it takes requests
	EjectionLevel  int        `json:"ejection_level,omitempty"` // of its breaker; 0 is closed
	EjectionReason string     `json:"ejection_reason,omitempty"`
	Coverage       string     `json:"coverage"`
	CoverageReason string     `json:"coverage_reason,omitempty"`
	BlockSize      int        `json:"block_size"`
	CapacityTokens int        `json:"capacity_tokens,omitempty"`
	MaxNumSeqs     int        `json:"max_num_seqs,omitempty"`
	MaxInflight    int        `json:"max_inflight"`
	Inflight       int        `json:"inflight"` // of this proxy, as MaxInflight limits it
	Running        int        `json:"running"`  // of them past the first token
	BacklogTokens  int        `json:"backlog_tokens"`
	KVTokens       int        `json:"kv_tokens"`       // of requests in flight, each in full
	HeldTokens     int        `json:"held_tokens"`     // the same, shared prefixes once
	Peers          *PeerLoad  `json:"peers,omitempty"` // what others have booked there, if anything
	HeldBlocks     HeldBlocks `json:"held_blocks"`
	Rate           float64    `json:"prefill_tokens_per_second"` // R
	RateSamples    int        `json:"prefill_rate_samples"`
	ITL            ITLStatus  `json:"itl"`
	Intercept      float64    `json:"ttft_intercept_seconds"` // a0
}

// PeerLoad is the load that other proxies have booked on a rank. Inflight and Running
// of WorkerStatus are without it, the tokens there include it.
type PeerLoad struct {
	Inflight      int `json:"inflight"`
	Running       int `json:"running"`
	BacklogTokens int `json:"backlog_tokens"` // as booked: drained is only the whole
	KVTokens      int `json:"kv_tokens"`
}

// HeldBlocks counts the blocks that events say the rank holds.
type HeldBlocks struct {
	GPU  int `json:"gpu"`
	CPU  int `json:"cpu"`
	Disk int `json:"disk"`
}

// ITLStatus is the fit ITL = A + B·n + C·KV of the worker's base model, in seconds.
type ITLStatus struct {
	A       float64 `json:"a_seconds"`
	B       float64 `json:"b_seconds_per_sequence"`
	C       float64 `json:"c_seconds_per_kv_token"`
	Samples int     `json:"samples"`
}

// Status returns every rank of the fleet, by worker and rank.
func (r *Router) Status() []WorkerStatus {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []WorkerStatus
	for _, w := range r.mu.workers {
		models := make([]string, len(w.spec.Models))
		for i, m := range w.spec.Models {
			models[i] = m.Name
		}
		for _, k := range w.ranks {
			r.refreshLocked(k, now)
			speed := k.rate.of(&w.base.rate)
			s := WorkerStatus{
				Worker: k.name.ID, Rank: k.name.Rank, Engine: w.spec.Engine, Models: models,
				Healthy: w.healthy, HealthReason: w.reason, Draining: w.draining, Warming: w.warming,
				EjectionLevel: w.breaker.Level, EjectionReason: w.breaker.Reason,
				Coverage: k.feed.State, CoverageReason: k.feed.Reason,
				BlockSize: k.blockSize(), CapacityTokens: w.spec.CapacityTokens, MaxNumSeqs: w.spec.MaxNumSeqs,
				MaxInflight: w.maxInflight(r.cfg.MaxInflight),
				Inflight:    k.inflight - k.peers.inflight, Running: k.inflight - k.peers.inflight - len(k.prefill) + k.peers.waiting,
				Peers:         k.peerStatus(),
				BacklogTokens: int(k.backlog(now, speed)), KVTokens: int(k.kvTokens.Load()), HeldTokens: int(k.heldTokens()),
				Rate: speed, RateSamples: k.rate.samples,
				ITL:       w.base.itlStatus(),
				Intercept: w.base.intercept.seconds,
			}
			r.cfg.Index.Each(func(_ int, x *index.Exact) {
				h := x.Held(k.num)
				s.HeldBlocks.GPU += h[kv.TierGPU]
				s.HeldBlocks.CPU += h[kv.TierCPU]
				s.HeldBlocks.Disk += h[kv.TierDisk]
			})
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b WorkerStatus) int {
		if c := strings.Compare(a.Worker, b.Worker); c != 0 {
			return c
		}
		return a.Rank - b.Rank
	})
	return out
}

// QueueStatus is what waits for a worker, and what it waits for.
type QueueStatus struct {
	Waiting int            `json:"waiting"`
	Classes map[string]int `json:"waiting_by_class,omitempty"`
	Models  map[string]int `json:"waiting_by_model,omitempty"`
	Pools   []PoolStatus   `json:"pools"` // those whose workers all tell their capacity

	depth [classes]int
}

// PoolStatus is how full the KV caches of the workers of one base model are.
type PoolStatus struct {
	Model          string  `json:"model"`
	LiveTokens     int     `json:"live_tokens"` // of requests in flight and conversations expected back
	CapacityTokens int     `json:"capacity_tokens"`
	ReturnShare    float64 `json:"return_share"` // of the contexts of turns that end: those that come back
	Busy           float64 `json:"busy_share"`   // of the last minute with a request before its first token
	Crowded        bool    `json:"crowded"`      // first turns wait
}

// Queue returns the state of the queue.
func (r *Router) Queue() QueueStatus {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.mu.queue
	s := QueueStatus{Waiting: q.waiting, depth: q.depth}
	if q.waiting > 0 {
		s.Classes, s.Models = map[string]int{}, map[string]int{}
	}
	for i, n := range q.depth {
		if n > 0 {
			s.Classes[classNames[i]] = n
		}
	}
	for name, l := range q.lanes {
		s.Models[name] = l.queued[laterTurn] + l.queued[firstTurn]
	}
	for _, m := range r.mu.models {
		if p := r.poolLocked(m, now); p.capacity > 0 {
			s.Pools = append(s.Pools, PoolStatus{
				Model: m.name, LiveTokens: int(p.live), CapacityTokens: int(p.capacity), ReturnShare: p.share,
				Busy: r.busyLocked(m, now), Crowded: r.cfg.MaxQueue >= 0 && r.poolFullLocked(m, now),
			})
		}
	}
	slices.SortFunc(s.Pools, func(a, b PoolStatus) int { return strings.Compare(a.Model, b.Model) })
	return s
}

func (m *model) itlStatus() ITLStatus {
	coef, samples := m.itl.coefficients()
	return ITLStatus{coef.a, coef.b, coef.c, samples}
}

// measuredModel is what metrics show of one base model.
type measuredModel struct {
	name      string
	ITL       ITLStatus
	intercept float64
}

// measured returns the base models of the fleet.
func (r *Router) measured() []measuredModel {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []measuredModel
	for _, w := range r.mu.workers {
		m := measuredModel{w.base.name, w.base.itlStatus(), w.base.intercept.seconds}
		if !slices.ContainsFunc(out, func(o measuredModel) bool { return o.name == m.name }) {
			out = append(out, m)
		}
	}
	return out
}
