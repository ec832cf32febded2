package upstream

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router"
)

// The breaker opens at failuresInRow, or when at least half of at least minOutcomes
// generations within the window failed.
const (
	failuresInRow = 5
	minOutcomes   = 20
)

const (
	breakerWindow = 10 // seconds of outcomes that count
	// An open breaker tries the worker out after minBackoff, then after twice as long
	// each time, up to maxBackoff; each ± 25 %, so that proxies do not try in step. One
	// that stayed closed for maxBackoff starts anew.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// maxPause bounds how long a worker's Retry-After keeps new requests away.
	maxPause = time.Minute
)

// How long a worker may owe the first byte of an answer before it is suspected to be stuck:
// overdueFactor × the predicted time to first token, but at least overdueStream, or
// overdueWhole where the answer comes in one piece after all of its tokens. It is only
// suspected where no byte of any answer came from it for the latter time, and then it is
// asked for one token before anything else follows.
const (
	overdueFactor = 10
	overdueStream = 3 * time.Second
	overdueWhole  = time.Minute
)

// Levels of router.Breaker. An ejected worker's rises with each trial that fails.
const (
	levelPaused  = 1
	levelEjected = 2
)

// The states of a breaker, as its gauge shows them.
const (
	stateClosed = iota
	stateTrial  // open, and being tried out
	stateOpen
)

// Why a breaker opened: a metric label.
const (
	ejectInRow = "failures_in_row"
	ejectShare = "failure_share"
	ejectStuck = "stuck"
)

// outcome is how a generation ended, as far as it tells of its worker.
type outcome int

const (
	neutral   outcome = iota // a refusal, a client that left
	succeeded                // an answer that came to its end
	failed
)

// breaker takes a worker out of routing by the outcomes of its generations, and lets it
// back in: by a probe that generates one token where the engine is one that takes it for
// nothing, by single real requests elsewhere.
//
//	          5 in a row, or half of 20 in 10 s, or stuck
//	closed ─────────────────────────────────────────────▶ open ◀──┐ failed:
//	   ▲                                       back-off   │       │ twice the
//	   │                                       is over    ▼       │ back-off
//	   └────────────────── it answered ◀──────────────── trial ───┘
//
// It never decides that a model has no worker: router.Breaker says who is worse than whom,
// and the router asks the least bad. An outcome counts only if its request was sent in the
// state that it speaks of: what was sent before an ejection neither ends nor prolongs it.
// Every method is told the time. None calls out; flush gives what others must hear.
type breaker struct {
	progress atomic.Int64 // when the last byte of an answer came, unix ns

	mu struct {
		sync.Mutex
		state     int
		stuck     bool      // open because of that
		reason    string    // why it is open
		ejections int       // without a quiet time in between, failed trials too
		lost      int       // trials that failed since anything succeeded
		openedAt  time.Time // last leaving of closed
		changedAt time.Time // last change of state
		trialAt   time.Time // when it is tried next
		offer     bool      // trial: a real request may come
		asking    bool      // a probe is on its way
		askedAt   time.Time // the last one

		inRow     int
		probation bool // closed by an answer that has only begun: one failure opens it again
		seconds   [breakerWindow]tally

		pausedUntil time.Time // zero: not

		flights flights // generations that owe their first byte
		dirty   bool    // others must hear of a change
		ejected string  // … and of an ejection, by its metric label
		back    bool    // … and of its end
	}
}

// tally counts the outcomes of one second.
type tally struct {
	at        int64 // unix time
	good, bad int
}

// record counts how a generation that was sent at some time ended. what says how it failed.
func (b *breaker) record(o outcome, sent, now time.Time, what string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o == failed && !sent.Before(b.mu.changedAt) {
		b.failedLocked(now, what)
	}
	if o == succeeded {
		b.answersLocked(sent, now)
		b.tallyLocked(now).good++
		b.mu.inRow, b.mu.probation = 0, false
	}
	return b.mu.dirty
}

// answers notes that the answer to a generation has begun.
func (b *breaker) answers(sent, now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answersLocked(sent, now)
	return b.mu.dirty
}

func (b *breaker) answersLocked(sent, now time.Time) {
	switch m := &b.mu; {
	case m.state == stateClosed:
	case m.stuck:
		b.closeLocked(now)
	case !sent.Before(m.openedAt):
		b.closeLocked(now)
		m.changedAt, m.probation = sent, true // so that its own end counts
	}
}

func (b *breaker) failedLocked(now time.Time, what string) {
	b.tallyLocked(now).bad++
	b.mu.inRow++
	switch b.mu.state {
	case stateTrial:
		b.againLocked(now, what)
	case stateClosed:
		good, bad := b.countLocked(now)
		switch {
		case b.mu.probation:
			b.openLocked(now, ejectInRow, "it failed again as soon as it was back: "+what)
		case b.mu.inRow >= failuresInRow:
			b.openLocked(now, ejectInRow, fmt.Sprintf("the last %d generations failed: %s", b.mu.inRow, what))
		case good+bad >= minOutcomes && bad >= good:
			b.openLocked(now, ejectShare, fmt.Sprintf("%d of %d generations within %d s failed, the last: %s", bad, good+bad, breakerWindow, what))
		}
	}
}

// tallyLocked returns the tally of this second.
func (b *breaker) tallyLocked(now time.Time) *tally {
	t := &b.mu.seconds[now.Unix()%breakerWindow]
	if t.at != now.Unix() {
		*t = tally{at: now.Unix()}
	}
	return t
}

// countLocked sums the outcomes of the window.
func (b *breaker) countLocked(now time.Time) (good, bad int) {
	for _, t := range b.mu.seconds {
		if t.at > now.Unix()-breakerWindow {
			good, bad = good+t.good, bad+t.bad
		}
	}
	return good, bad
}

func (b *breaker) openLocked(now time.Time, why, reason string) {
	m := &b.mu
	if now.Sub(m.changedAt) >= maxBackoff {
		m.ejections = 0
	}
	m.ejections++
	m.state, m.stuck, m.reason, m.ejected, m.dirty = stateOpen, why == ejectStuck, reason, why, true
	m.openedAt, m.changedAt = now, now
	m.trialAt = now.Add(b.backoffLocked())
}

// againLocked opens the breaker after a trial that failed.
func (b *breaker) againLocked(now time.Time, what string) {
	m := &b.mu
	m.ejections++
	m.lost++
	m.state, m.offer, m.reason, m.dirty = stateOpen, false, "its last trial failed: "+what, true
	m.changedAt = now
	m.trialAt = now.Add(b.backoffLocked())
}

func (b *breaker) backoffLocked() time.Duration {
	d := min(minBackoff<<min(b.mu.ejections-1, 8), maxBackoff)
	return d*3/4 + rand.N(d/2)
}

func (b *breaker) closeLocked(now time.Time) {
	m := &b.mu
	m.back = m.state != stateClosed
	m.dirty = m.dirty || m.back
	m.state, m.stuck, m.offer, m.reason = stateClosed, false, false, ""
	m.changedAt, m.inRow, m.lost, m.probation = now, 0, 0, false
	clear(m.seconds[:]) // what it was ejected for is not held against it twice
}

// reset forgets everything: by its health checks the worker is not there, so what answers
// next is another process.
func (b *breaker) reset(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeLocked(now)
	b.mu.dirty = b.mu.dirty || !b.mu.pausedUntil.IsZero()
	b.mu.back, b.mu.ejections, b.mu.pausedUntil = false, 0, time.Time{}
}

// pause keeps new requests away for as long as the worker asked for, if others are there.
func (b *breaker) pause(d time.Duration, now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until := now.Add(min(d, maxPause)); until.After(b.mu.pausedUntil) {
		b.mu.dirty = b.mu.dirty || b.mu.pausedUntil.IsZero()
		b.mu.pausedUntil = until
	}
	return b.mu.dirty
}

// tick moves the breaker on. Where ask is true, the caller asks the worker for one token
// and tells answered what came of it.
func (b *breaker) tick(now time.Time) (ask, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &b.mu
	if !m.pausedUntil.IsZero() && !now.Before(m.pausedUntil) {
		m.pausedUntil, m.dirty = time.Time{}, true
	}
	switch {
	case m.asking:
	case m.state == stateClosed:
		ask = b.silentLocked(now)
	case m.stuck && b.progress.Load() > m.openedAt.UnixNano():
		b.closeLocked(now)
	case m.state == stateTrial && m.flights.since(m.changedAt):
		// A real request tries it and waits: one is enough.
	case !now.Before(m.trialAt): // also after a trial that nobody took, or whose client left
		ask = true
		m.dirty = m.dirty || m.state != stateTrial
		m.state, m.offer, m.changedAt = stateTrial, false, now
		m.trialAt = now.Add(b.backoffLocked())
	}
	if ask {
		m.asking, m.askedAt = true, now
	}
	return ask, m.dirty
}

// silentLocked tells whether the worker owes a first byte for longer than that can take,
// and gives no other sign of life.
func (b *breaker) silentLocked(now time.Time) bool {
	sign := time.Unix(0, b.progress.Load())
	if b.mu.askedAt.After(sign) {
		sign = b.mu.askedAt
	}
	quiet := now.Sub(sign)
	for f := b.mu.flights.first; f != nil && quiet >= overdueStream; f = f.next {
		if since := now.Sub(f.sent); since >= f.patience && min(since, quiet) >= f.silence {
			return true
		}
	}
	return false
}

// verdict is what came of asking a worker for one token.
type verdict int

const (
	generates verdict = iota
	broken            // an error, or no answer in time
	unable            // it cannot be asked that way: a real request must try
)

// answered takes what came of the question that tick asked for.
func (b *breaker) answered(v verdict, now time.Time, what string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &b.mu
	m.asking = false
	switch {
	case m.state == stateTrial && v == generates:
		b.closeLocked(now)
	case m.state == stateTrial && v == broken:
		b.againLocked(now, what)
	case m.state == stateTrial:
		m.offer, m.dirty = true, true
	case m.state == stateClosed && v == broken && m.flights.before(m.askedAt) && b.progress.Load() < m.askedAt.UnixNano():
		b.openLocked(now, ejectStuck, "it answers nothing though its health checks are good: "+what)
	}
	return m.dirty
}

// news is what others must hear of a breaker.
type news struct {
	router  router.Breaker
	state   int
	ejected string // why it has just been ejected; a metric label
	back    bool   // it has just come back
}

// flush returns what has changed since it was last called.
func (b *breaker) flush() (n news, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &b.mu
	if !m.dirty {
		return n, false
	}
	n = news{state: m.state, ejected: m.ejected, back: m.back}
	n.router.Level, n.router.Reason = b.levelLocked()
	n.router.Trial, m.offer = m.offer, false
	m.dirty, m.ejected, m.back = false, "", false
	return n, true
}

// levelLocked returns how bad it is to send requests to the worker, and why.
func (b *breaker) levelLocked() (level int, reason string) {
	switch m := &b.mu; {
	case m.state != stateClosed:
		return levelEjected + min(m.lost, 8), m.reason
	case !m.pausedUntil.IsZero():
		return levelPaused, "it asked for a pause (Retry-After) until " + m.pausedUntil.UTC().Format(time.TimeOnly)
	}
	return 0, ""
}

// standing returns the state for people.
func (b *breaker) standing() (state, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, reason = b.levelLocked()
	return [...]string{stateClosed: "closed", stateTrial: "trial", stateOpen: "open"}[b.mu.state], reason
}
