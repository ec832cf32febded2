package router

import (
	"fmt"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// Outlook is where a request would go by cost at this moment and what it would meet
// there. Nothing is booked for it.
type Outlook struct {
	Worker        kv.WorkerRank
	Engine        string // as the worker's spec says
	Coverage      string // state of the rank's feed
	BlockSize     int
	PromptTokens  int
	OverlapBlocks int // in the unit of OverlapFrom
	OverlapTokens int
	OverlapFrom   string  // "exact", "approximate", "predicted"; "" for none
	Rate          float64 // R, prefill tokens per second
	Inflight      int     // sequences there, warm-ups included
	Waiting       int     // requests of clients there that wait for their first token
	Warming       int     // warm-ups in flight there
	Full          bool    // no sequence slot is free
	Evict         float64 // E, seconds
	AgeScale      float64 // τ, seconds

	// Of the last 60 s, or since the rank joined, that is Over: the time in which a
	// client's request waited there for its first token, and that in which a warm-up
	// was in flight.
	Busy, Warmed, Over time.Duration
}

// Outlook tells where Route would send a later turn by cost, whatever the router's mode.
// Asking books nothing and pays no rent.
func (r *Router) Outlook(req *Request) (Outlook, error) {
	f := r.fleet.Load()
	to := f.models[req.Model]
	if to == nil {
		return Outlook{}, fmt.Errorf("model %q: %w", req.Model, ErrUnknownModel)
	}
	ask := *req
	ask.Speculative = true
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	defer s.release()
	q := r.query(s, to, &ask)

	r.mu.Lock()
	defer r.mu.Unlock()
	if usable, _ := r.scoreAllLocked(&q); usable == 0 {
		return Outlook{}, noWorkers(&q)
	}
	best := r.cheapestLocked(&q)
	w := &s.rows[best]
	k := w.rank
	now := r.nanos(q.now)
	return Outlook{
		Worker: k.name, Engine: k.worker.spec.Engine, Coverage: k.feed.State, BlockSize: k.blockSize(),
		PromptTokens: int(s.tokens), OverlapBlocks: w.blocks, OverlapTokens: int(w.tokens), OverlapFrom: w.from,
		Rate: w.in.rate, Inflight: k.inflight, Waiting: k.waiting, Warming: k.warming,
		Full:  k.worker.spec.MaxNumSeqs > 0 && k.inflight >= k.worker.spec.MaxNumSeqs,
		Evict: w.terms.evict, AgeScale: q.tau,
		Busy: k.busy.last(now), Warmed: k.warmed.last(now), Over: time.Duration(min(now-k.joined, meterSpan*second)),
	}, nil
}

const (
	meterSpan = 60 // seconds that a meter remembers
	second    = int64(time.Second)
)

// meter measures for how much of the last 60 s something was on, in slots of one
// second. Times are nanoseconds of Router.nanos.
type meter struct {
	slots [meterSpan]int64 // time on, by second modulo the length
	at    int64            // up to when slots are filled
	on    bool
}

// set tells that it is on or off from the time now, which may lie a little before that
// of an earlier call: what was counted stays.
func (m *meter) set(on bool, now int64) {
	m.fill(now)
	m.on = on
}

// fill brings the slots up to now.
func (m *meter) fill(now int64) {
	if now <= m.at {
		return
	}
	const n = meterSpan
	if now/second-m.at/second >= n {
		m.at = (now/second - n + 1) * second
	}
	for m.at < now {
		end := min((m.at/second+1)*second, now)
		if m.at%second == 0 {
			m.slots[m.at/second%n] = 0
		}
		if m.on {
			m.slots[m.at/second%n] += end - m.at
		}
		m.at = end
	}
}

// last returns the time on in the second of now and the 59 before it.
func (m *meter) last(now int64) time.Duration {
	m.fill(now)
	var sum int64
	for _, v := range m.slots {
		sum += v
	}
	return time.Duration(sum)
}
