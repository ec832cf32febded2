package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// Faults are the switches with which a worker misbehaves. POST /fault replaces them
// with the body, GET /fault shows them. They change generation requests only, unless
// they say otherwise; health stays good, which is the nastier case.
type Faults struct {
	// Rate is the share of generation requests that Status, Reset, HangHeaders,
	// HangAfter and DieAfter change; 0 means all.
	Rate float64 `json:"rate,omitempty"`
	// Status answers with this code, 400 to 599, and RetryAfter seconds where positive.
	Status     int `json:"status,omitempty"`
	RetryAfter int `json:"retry_after,omitempty"`
	// Reset breaks the connection once the request is read, before any byte of a reply.
	Reset bool `json:"reset,omitempty"`
	// HangHeaders never answers. HangAfter stalls a stream after so many deltas (of one token each).
	HangHeaders bool `json:"hang_headers,omitempty"`
	HangAfter   int  `json:"hang_after,omitempty"`
	// DieAfter breaks a stream off after so many deltas, without its last chunk.
	DieAfter int `json:"die_after,omitempty"`
	// Slow multiplies the time of every engine step, by at most a million; 0 means 1.
	Slow float64 `json:"slow,omitempty"`
	// HealthStatus is what the health endpoints answer; 0 means what is true.
	HealthStatus int `json:"health_status,omitempty"`

	// EventDelayMillis holds every event batch back for so long.
	EventDelayMillis int `json:"event_delay_ms,omitempty"`
	// ReorderEvents announces the new blocks of a step children first, one by one.
	ReorderEvents bool `json:"reorder_events,omitempty"`

	// The rest happens once, when the faults are set, and is not shown by GET.

	// SkipEvents loses the next batches of each rank for good: a gap in the sequence
	// that no replay fills. DropEvents loses them on the live socket only.
	SkipEvents int `json:"skip_events,omitempty"`
	DropEvents int `json:"drop_events,omitempty"`
	// Restart is a new process behind the same address: connections break, caches are
	// empty, event sequences start at 0. Crash is a restart after DownMillis, default
	// 1,000, in which every connection is reset.
	Restart    bool `json:"restart,omitempty"`
	Crash      bool `json:"crash,omitempty"`
	DownMillis int  `json:"down_ms,omitempty"`
}

func (f Faults) validate() error {
	bad := func(name string, v any) error { return fmt.Errorf("fault %s: %v is out of range", name, v) }
	switch {
	case f.Rate < 0 || f.Rate > 1:
		return bad("rate", f.Rate)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return bad("status", f.Status)
	case f.HealthStatus != 0 && (f.HealthStatus < 200 || f.HealthStatus > 599):
		return bad("health_status", f.HealthStatus)
	case f.Slow < 0 || f.Slow > 1e6:
		return bad("slow", f.Slow)
	case min(f.RetryAfter, f.HangAfter, f.DieAfter, f.EventDelayMillis, f.SkipEvents, f.DropEvents, f.DownMillis) < 0:
		return fmt.Errorf("fault: a count or time is negative")
	}
	return nil
}

// SetFaults replaces the standing faults and does those that happen once.
func (s *Server) SetFaults(f Faults) error { return s.setFaults(f, nil) }

// setFaults spares the connection on which the faults arrived.
func (s *Server) setFaults(f Faults, spared *conn) error {
	if err := f.validate(); err != nil {
		return err
	}
	for _, r := range s.ranks {
		r.mu.Lock()
		if r.mu.slow != f.Slow {
			poke(r.cut) // a step that was to take hours ends
		}
		r.mu.slow, r.mu.reorder = f.Slow, f.ReorderEvents
		r.mu.Unlock()
		if p := r.publisher; p != nil {
			p.Delay(time.Duration(f.EventDelayMillis) * time.Millisecond)
			p.Skip(f.SkipEvents)
			p.Drop(f.DropEvents)
		}
	}
	restart, crash, down := f.Restart, f.Crash, f.DownMillis
	f.SkipEvents, f.DropEvents, f.Restart, f.Crash, f.DownMillis = 0, 0, false, false, 0
	s.faults.Store(&f)
	switch {
	case crash:
		if down == 0 {
			down = 1000
		}
		s.crash(time.Duration(down)*time.Millisecond, spared)
	case restart:
		s.restart(spared)
	}
	return nil
}

// restart is a new incarnation on the same address.
func (s *Server) restart(spared *conn) {
	for _, r := range s.ranks {
		r.restart()
	}
	s.listener.cut(spared)
}

// crash resets all connections now and each new one until down has passed; the new
// incarnation answers after that.
func (s *Server) crash(down time.Duration, spared *conn) {
	s.listener.setDown(true)
	s.restart(spared)
	s.downTimer.Reset(down)
}

func (s *Server) serveFault(ctx *fasthttp.RequestCtx) {
	if ctx.IsGet() {
		s.json(ctx, s.faults.Load())
		return
	}
	var f Faults
	if err := json.Unmarshal(ctx.PostBody(), &f); err != nil {
		s.fail(ctx, badRequest("", "fault: %v", err))
		return
	}
	peer, _ := ctx.Conn().(*conn)
	if err := s.setFaults(f, peer); err != nil {
		s.fail(ctx, badRequest("", "%v", err))
		return
	}
	ctx.SetStatusCode(fasthttp.StatusNoContent)
	if f.Crash || f.Restart {
		ctx.SetConnectionClose()
	}
}

// strikes decides whether the faults change this generation request.
func (s *Server) strikes(f *Faults) bool {
	if f.Rate == 0 {
		return true
	}
	s.dice.Lock()
	defer s.dice.Unlock()
	return s.dice.Float64() < f.Rate
}

// reorder splits stored events into single blocks and turns each run of them around,
// so that children come before their parents.
func reorder(events []kvwire.Event) []kvwire.Event {
	var out []kvwire.Event
	from := 0
	for _, e := range events {
		if e.Kind != kv.EventStored {
			slices.Reverse(out[from:])
			out = append(out, e)
			from = len(out)
			continue
		}
		for i := range e.Hashes {
			one := e
			one.Hashes = e.Hashes[i : i+1]
			one.Tokens = e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]
			if i > 0 {
				one.HasParent, one.Parent = true, e.Hashes[i-1]
			}
			if e.MM != nil {
				one.MM = e.MM[i : i+1]
			}
			out = append(out, one)
		}
	}
	slices.Reverse(out[from:])
	return out
}
