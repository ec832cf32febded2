package sim

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// peekInterval is how often a waiting request looks whether its client is still
// there.
const peekInterval = 25 * time.Millisecond

var (
	errClientGone = errors.New("client has gone")
	errStopped    = errors.New("engine stopped")
)

// generation is one HTTP request's work: one sequence per choice, all on one rank.
type generation struct {
	rank    *rank
	choices []*choice
	wake    chan struct{} // one pending wake-up for the handler
	started time.Time
	stream  bool  // the handler wants to know of each token, not only of the last
	peer    *conn // nil when the connection has no socket to look at
	peeked  time.Time
}

// choice is one sequence of a generation and what the handler has seen of it. The
// loop of the rank writes progress, the handler reads it.
type choice struct {
	gen   *generation
	seq   *Seq
	reply *reply

	mu struct {
		sync.Mutex
		progress
	}

	// Of the handler's stream:
	sent          int  // tokens already written
	opened, named bool // the first event, the tool call's name are written
	finished      bool // the last event is written
}

type progress struct {
	generated, cached int
	done              bool
	err               error // why it ended before its last token
	first, last       time.Time
}

func (c *choice) progress() progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.progress
}

// advance is told by the rank's loop after a step.
func (c *choice) advance(p Progress, now time.Time) {
	c.mu.Lock()
	if p.FirstToken || c.mu.first.IsZero() {
		c.mu.first, c.mu.cached = now, p.Seq.CachedTokens
	}
	c.mu.last = now
	c.mu.generated, c.mu.done = p.Seq.Generated, p.Finished
	c.mu.Unlock()
	if c.gen.stream || p.Finished {
		c.gen.signal()
	}
}

// oneDelta takes back all but the next token that shows, for faults that count deltas.
func (p *progress) oneDelta(c *choice) {
	n := c.sent + 1
	for n < p.generated && c.reply.channels[n-1] == chSilent {
		n++
	}
	if n < p.generated {
		p.generated, p.done = n, false
	}
}

// fail ends the choice without its last token.
func (c *choice) fail(err error) {
	c.mu.Lock()
	if !c.mu.done {
		c.mu.done, c.mu.err = true, err
	}
	c.mu.Unlock()
	c.gen.signal()
}

func (g *generation) signal() { poke(g.wake) }

// newGeneration turns one request into sequences: copies of each prompt.
func newGeneration(r *rank, prompts []rendered, copies int, ns kv.Namespace, plan replyPlan) *generation {
	g := &generation{rank: r, wake: make(chan struct{}, 1), started: time.Now()}
	for _, p := range prompts {
		for i := range copies {
			q := plan
			q.seed += uint64(i)
			if !p.thinks {
				q.reasoning = 0
			}
			c := &choice{gen: g, reply: &reply{}}
			if plan.max > 0 {
				c.reply = q.write(p.tokens)
			}
			c.seq = &Seq{
				Tokens: p.tokens, Media: p.media, Namespace: ns, OutputTokens: len(c.reply.tokens),
				Output: func(i int) uint32 { return c.reply.tokens[i] }, Tag: c,
			}
			g.choices = append(g.choices, c)
		}
	}
	return g
}

// wait blocks until something has advanced since the last wait. It fails when the
// client has gone. A connection that is no socket tells so only when it is written to.
func (g *generation) wait() error {
	var tick <-chan time.Time
	if g.peer != nil {
		if g.peeked.IsZero() {
			g.peeked = time.Now()
		}
		t := time.NewTimer(peekInterval - time.Since(g.peeked))
		defer t.Stop()
		tick = t.C
	}
	select {
	case <-g.rank.server.stop:
		return errStopped
	case <-g.wake:
	case <-tick:
	}
	if g.peer != nil && time.Since(g.peeked) >= peekInterval {
		g.peeked = time.Now()
		if g.peer.gone() {
			return errClientGone
		}
	}
	return nil
}

// finish waits for every choice.
func (g *generation) finish() error {
	for {
		done := true
		for _, c := range g.choices {
			p := c.progress()
			if p.err != nil {
				return p.err
			}
			done = done && p.done
		}
		if done {
			return nil
		}
		if err := g.wait(); err != nil {
			return err
		}
	}
}

// close aborts what still runs. It is called once on every path.
func (g *generation) close() { g.rank.abort(g) }

// usage returns prompt, output and cached tokens. Choices of one prompt count it once.
func (g *generation) usage(copies int) (u usage) {
	for i, c := range g.choices {
		p := c.progress()
		if i%copies == 0 {
			u.prompt += len(c.seq.Tokens)
			u.cached += p.cached
		}
		u.output += p.generated
	}
	return u
}

type usage struct{ prompt, output, cached int }

// stream is the body of a streaming response. fasthttp reads it from the goroutine of
// the request and flushes after each read; Close follows also when the client is gone.
type stream struct {
	gen   *generation
	write func(dst []byte) ([]byte, bool, error) // appends what is new; true after the last byte
	buf   []byte
	off   int
	ended bool

	deltas           int // chunks written so far
	dieAfter, hangAt int // faults: deltas after which the stream breaks or stalls; 0 = never
}

func (s *stream) Read(p []byte) (int, error) {
	for s.off == len(s.buf) {
		if s.ended {
			return 0, io.EOF
		}
		if s.dieAfter > 0 && s.deltas >= s.dieAfter {
			return 0, io.ErrUnexpectedEOF
		}
		if s.hangAt > 0 && s.deltas >= s.hangAt {
			return 0, s.gen.hang()
		}
		s.buf, s.off = s.buf[:0], 0
		var err error
		if s.buf, s.ended, err = s.write(s.buf); err != nil {
			return 0, err
		}
		if len(s.buf) == 0 && !s.ended {
			if err := s.gen.wait(); err != nil {
				return 0, err
			}
		}
	}
	n := copy(p, s.buf[s.off:])
	s.off += n
	return n, nil
}

// hang blocks until the client or the server goes, and says which.
func (g *generation) hang() (err error) {
	for err == nil {
		err = g.wait()
	}
	return err
}

func (s *stream) Close() error {
	s.gen.close()
	return nil
}
