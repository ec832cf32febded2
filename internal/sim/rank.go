package sim

import (
	"context"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
)

// maxLag is how far an engine's clock may fall behind real time before it gives up
// catching up.
const maxLag = 100 * time.Millisecond

// rank is one DP rank of a server: an engine, its loop and its publisher.
type rank struct {
	server    *Server
	number    int
	publisher *kvwire.Publisher // nil without events
	wake      chan struct{}     // one pending wake-up for the idle loop
	cut       chan struct{}     // one pending order to end the step under way at once

	mu struct {
		sync.Mutex
		engine  *Engine
		live    map[*choice]struct{}
		life    uint64  // incarnation, part of the engine's hash seed
		slow    float64 // fault: multiplies step times; 0 means 1
		reorder bool    // fault: children are announced before their parents
		times   times
	}
}

func newRank(s *Server, number int) *rank {
	r := &rank{server: s, number: number, wake: make(chan struct{}, 1), cut: make(chan struct{}, 1)}
	r.mu.live = map[*choice]struct{}{}
	r.mu.engine = r.newEngineLocked()
	return r
}

func (r *rank) newEngineLocked() *Engine {
	cfg := r.server.cfg.Engine
	cfg.Seed += uint64(r.number)<<32 + r.mu.life
	return NewEngine(cfg)
}

// submit queues every choice of g, or none.
func (r *rank) submit(g *generation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.live)+len(g.choices) > r.server.cfg.MaxQueue {
		return errQueueFull
	}
	for i, c := range g.choices {
		if err := r.mu.engine.Submit(c.seq); err != nil {
			for _, c := range g.choices[:i] {
				r.mu.engine.Abort(c.seq)
				delete(r.mu.live, c)
			}
			return err
		}
		r.mu.live[c] = struct{}{}
	}
	r.signal()
	return nil
}

func (r *rank) abort(g *generation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range g.choices {
		if _, ok := r.mu.live[c]; ok {
			r.mu.engine.Abort(c.seq)
			delete(r.mu.live, c)
		}
	}
	r.signal()
}

func (r *rank) signal() { poke(r.wake) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// load orders ranks as vLLM's own balancer does: waiting sequences count four times.
func (r *rank) load() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 4*len(r.mu.engine.waiting) + len(r.mu.engine.running)
}

// run paces the engine in real time until ctx ends: each step ends its planned time
// after the last one, or after the request that woke the engine.
func (r *rank) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	clock := time.Now()
	for {
		r.mu.Lock()
		engine := r.mu.engine
		d, ok := engine.Begin(clock)
		if r.mu.slow > 0 {
			d = time.Duration(float64(d) * r.mu.slow)
		}
		if !ok {
			r.publishLocked(engine)
		}
		r.mu.Unlock()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			}
			select {
			case <-r.cut: // there was no step to end
			default:
			}
			clock = time.Now()
			continue
		}
		if clock = clock.Add(d); time.Since(clock) > maxLag {
			clock = time.Now()
		}
		timer.Reset(time.Until(clock))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.cut:
			clock = time.Now()
		}
		r.mu.Lock()
		if engine == r.mu.engine { // else a restart has dropped it
			for _, p := range engine.End(clock) {
				c := p.Seq.Tag.(*choice)
				r.observeLocked(c, p, clock)
				c.advance(p, clock)
				if p.Finished {
					delete(r.mu.live, c)
				}
			}
			r.publishLocked(engine)
		}
		r.mu.Unlock()
	}
}

// publishLocked sends what the engine has to say as one batch.
func (r *rank) publishLocked(e *Engine) {
	events := e.Events()
	if r.publisher == nil || len(events) == 0 {
		return
	}
	if r.mu.reorder {
		events = reorder(events)
	}
	b := kvwire.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Rank: r.number, Events: events}
	r.publisher.Publish(kvwire.Append(nil, r.server.layout, &b, r.server.cfg.Encode))
}

// restart does what a new process does: nothing is cached, every sequence is lost and
// the events start again.
func (r *rank) restart() {
	r.mu.Lock()
	live := r.mu.live
	r.mu.live = map[*choice]struct{}{}
	r.mu.life++
	r.mu.times = times{}
	r.mu.engine = r.newEngineLocked()
	if r.publisher != nil {
		r.publisher.Restart()
	}
	r.mu.Unlock()
	for c := range live {
		c.fail(errStopped)
	}
	poke(r.cut)
	r.signal()
}
