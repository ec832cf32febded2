package router

import (
	"math"
	"slices"
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
	Inflight      int     // clients' sequences there
	Waiting       int     // requests of clients there that wait for their first token
	Warming       int     // warm-ups in flight there
	Full          bool    // no sequence slot is free
	Evict         float64 // E, seconds
	AgeScale      float64 // τ, seconds
	Drafts        bool    // as the worker's spec says
	// Residency is for how long, in seconds, a block that nobody uses stays there: the
	// idle age of those that must go next; +Inf while there is room.
	Residency float64

	// YoungestEvicted is e^(−idle age ÷ τ) of the last block that must go for the prompt;
	// 0 while free blocks suffice.
	YoungestEvicted float64

	// Of the last 60 s, or since the rank joined, that is Over: the time in which a
	// client's request waited there for its first token, and that in which a warm-up
	// was in flight.
	Busy, Warmed, Over time.Duration
}

// Outlook tells where Route would send a later turn by cost, whatever the router's mode.
// Asking books nothing and pays no rent.
func (r *Router) Outlook(req *Request) (Outlook, error) {
	to, err := r.fleet.Load().serving(req.Model)
	if err != nil {
		return Outlook{}, err
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
	k.settleBusyLocked(r, q.now)
	waiting, _ := k.waitingLocked(q.now)
	return Outlook{
		Worker: k.name, Engine: k.worker.spec.Engine, Coverage: k.feed.State, BlockSize: k.blockSize(),
		PromptTokens: int(s.tokens), OverlapBlocks: w.blocks, OverlapTokens: int(w.tokens), OverlapFrom: w.from,
		Rate: w.in.rate, Inflight: k.inflight, Waiting: waiting, Warming: len(k.warm),
		Full:  k.worker.spec.MaxNumSeqs > 0 && k.inflight+len(k.warm) >= k.worker.spec.MaxNumSeqs,
		Evict: w.terms.evict, AgeScale: q.tau, Residency: w.in.residency(q.tau), YoungestEvicted: w.youngest, Drafts: k.worker.spec.Drafts,
		Busy: k.busy.last(now), Warmed: k.warmed.last(now), Over: time.Duration(min(now-k.joined, meterSpan*second)),
	}, nil
}

// residency is the age, in seconds, at which e^(−age/τ) is what the tokens that must go
// weigh on average: under LRU eviction others' blocks will be as old when they go. It is
// at most maxResidency·τ where any must.
func (in *costInput) residency(tau float64) float64 {
	if in.must == 0 {
		return math.Inf(1)
	}
	return tau * math.Log(max(in.must/max(in.evict, in.must*math.Exp(-maxResidency)), 1))
}

const maxResidency = 20

// Busy returns the time that clients' requests have waited for their first token on the
// ranks of the fleet, each rank's since it joined: what the fleet has spent on prefill.
func (r *Router) Busy() (total time.Duration) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.mu.workers {
		for _, k := range w.ranks {
			k.settleBusyLocked(r, now)
			k.busy.fill(r.nanos(now))
			total += time.Duration(k.busy.total)
		}
	}
	return total
}

// Preview returns the decision that Route would take by cost at this moment, whatever the
// router's mode. It has no ID: nothing is booked, counted or learned, and no rent is paid.
func (r *Router) Preview(req *Request) (*Decision, error) {
	to, err := r.fleet.Load().serving(req.Model)
	if err != nil {
		return nil, err
	}
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	defer s.release()
	q := r.query(s, to, req)

	r.mu.Lock()
	defer r.mu.Unlock()
	if usable, full := r.scoreAllLocked(&q); usable == 0 {
		if full > 0 {
			return nil, r.saturatedLocked(&q)
		}
		return nil, noWorkers(&q)
	}
	best := r.cheapestLocked(&q)
	reason := "blind"
	if s.tokens > 0 {
		reason = why(s.rows, best)
	}
	d := q.decide(r, best, reason)
	d.ID, d.Mode = "", ModeKV
	d.Waits = r.cfg.MaxQueue >= 0 && q.needsRoom() && r.crowdedLocked(q.to, q.now)
	return d, nil
}

// warmLocked books a warm-up of so many tokens. It is apart from the load of clients:
// whoever owns it ends it when a client's request comes to the rank, so no choice waits
// for it or shuns it, and no measured rate or gap counts while it is there.
func (k *rank) warmLocked(l *Lease, uncached float64, now time.Time) {
	if len(k.warm) == 0 {
		k.warmFrom = now
	}
	l.uncached = max(uncached, 0)
	l.kv.Store(-1) // Progress counts nothing
	k.warm = append(k.warm, l)
	k.warmTokens += l.uncached
	k.warmed.set(true, l.r.nanos(now))
}

// cooledLocked ends the booking of a warm-up. One that is cut short leaves what it has
// computed: an engine keeps that, and events will tell.
func (r *Router) cooledLocked(l *Lease, now time.Time, ok bool) {
	k := l.rank
	i := slices.Index(k.warm, l)
	done := 0.0
	if i == 0 {
		done = k.rate.of(&k.worker.base.rate) * now.Sub(k.warmFrom).Seconds()
		k.warmFrom = now
	}
	k.warm = slices.Delete(k.warm, i, i+1)
	k.warmTokens -= l.uncached
	if len(k.warm) == 0 {
		k.warmTokens = 0 // what is left is rounding
		k.warmed.set(false, r.nanos(now))
		r.calmLocked(k, now)
	}
	if ok || l.predicted.IsZero() {
		return
	}
	p := r.cfg.Index.Predicted()
	p.Retract(l.prediction)
	held := l.prompt - l.uncached + min(max(done, 0), drainCap*l.uncached)
	if n := min(int(held/l.unitSize), len(l.ids)); n > 0 {
		p.Add(k.num, l.ids[:n])
	}
}

// waitingLocked counts the requests before their first token. One that is not streamed
// never tells of it: it counts until its tokens should be computed, and drained is when
// that was for the last of those that have been.
func (k *rank) waitingLocked(now time.Time) (waiting int, drained time.Time) {
	for _, l := range k.prefill {
		if l.stream || l.drained.After(now) {
			waiting++
		} else if l.drained.After(drained) {
			drained = l.drained
		}
	}
	return waiting, drained
}

// settleBusyLocked turns the meter of waiting requests off as of when the last of them
// was computed, if nobody told.
func (k *rank) settleBusyLocked(r *Router, now time.Time) {
	if waiting, drained := k.waitingLocked(now); waiting == 0 && len(k.prefill) > 0 && k.busy.on {
		k.busy.set(false, r.nanos(drained))
	}
}

const (
	meterSpan = 60 // seconds that a meter remembers
	second    = int64(time.Second)
)

// meter measures for how much of the last 60 s something was on, in slots of one
// second. Times are nanoseconds of Router.nanos.
type meter struct {
	slots [meterSpan]int64 // time on, by second modulo the length
	total int64            // time on since it began
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
	if m.on {
		m.total += now - m.at
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
