package testcluster

import (
	"time"

	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
)

// request is one turn in flight.
type request struct {
	session    *session
	turn       int
	worker     *worker
	lease      *router.Lease
	waiter     *router.Waiter // while it is in a router's queue
	seq        *sim.Seq
	sentAt     time.Duration
	firstToken time.Duration
}

// session is one conversation being played.
type session struct {
	number  int // position in the workload
	conv    *Conversation
	turn    int      // next turn to send
	history []uint32 // every token so far; prompts are prefixes of it, so it only grows
	last    *worker  // where the turn before went
}

// next grows the history by the turn's input and returns the request for it. Prompts
// share the history's array: what an engine holds of it never changes.
func (s *session) next(now time.Duration) *request {
	c := s.conv
	if s.history == nil {
		s.history = append(make([]uint32, 0, c.tokens()), c.Prefix...)
	}
	turn := c.Turns[s.turn]
	if c.Input != nil {
		s.history = c.Input(s.history, s.turn)
	} else {
		s.history = appendTokens(s.history, inputStream(c.ID, s.turn), turn.InputTokens)
	}
	out := outputStream(c.ID, s.turn)
	r := &request{session: s, turn: s.turn, sentAt: now}
	r.seq = &sim.Seq{
		Tokens: s.history[:len(s.history):len(s.history)], OutputTokens: turn.OutputTokens,
		Output: func(i int) uint32 { return token(out, i) }, Tag: r,
	}
	return r
}

// loader starts sessions and says when each sends.
type loader struct {
	c        *cluster
	workload Workload
	started  int // conversations handed out
	open     int // sessions not ended
	sent     int // requests, which alternate between the proxies
}

func newLoader(c *cluster, w Workload) *loader { return &loader{c: c, workload: w} }

// start arms the first send of every client, or of every conversation in an open loop.
func (l *loader) start() {
	cfg := l.c.cfg
	if cfg.Concurrency == 0 {
		for i := range l.workload.Conversations {
			l.begin(l.workload.Conversations[i].Arrival)
		}
		return
	}
	r := rng(cfg.Seed, 0x57a9)
	for range min(cfg.Concurrency, len(l.workload.Conversations)) {
		var at time.Duration
		if cfg.Stagger > 0 {
			at = time.Duration(r.Int64N(int64(cfg.Stagger)))
		}
		l.begin(at)
	}
}

// begin opens the next conversation, whose first turn is sent at.
func (l *loader) begin(at time.Duration) {
	s := &session{number: l.started, conv: &l.workload.Conversations[l.started]}
	l.started++
	l.open++
	l.c.timers.push(timer{at: at, kind: timerSend, session: s})
}

// finished moves the session of r on: to its next turn, or, in a closed loop, its
// client to the next conversation.
func (l *loader) finished(r *request) {
	s := r.session
	out := outputStream(s.conv.ID, s.turn)
	s.history = appendTokens(s.history, out, r.seq.OutputTokens)
	s.last = r.worker
	if s.turn++; s.turn < len(s.conv.Turns) {
		at := l.c.now + l.c.cfg.ClientDelay
		l.c.timers.push(timer{at: at + s.conv.Turns[s.turn].Think, kind: timerSend, session: s})
		return
	}
	l.end(s)
}

// end closes a session; in a closed loop its client takes the next conversation.
func (l *loader) end(s *session) {
	l.open--
	s.history = nil
	if l.c.cfg.Concurrency > 0 && l.started < len(l.workload.Conversations) {
		l.begin(l.c.now + l.c.cfg.ClientDelay)
	}
}
