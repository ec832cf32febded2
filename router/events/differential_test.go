package events

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// sequence is one random life of an engine, and what a consumer may make of it.
type sequence struct {
	*engine
	rng     *rand.Rand
	prompts [][]uint32
	relay   *Relay
	holes   bool // events were lost that no replay brings back, since the last clear
}

// prompt returns a prompt that often shares a prefix with an earlier one.
func (s *sequence) prompt() []uint32 {
	var toks []uint32
	if len(s.prompts) > 0 && s.rng.IntN(4) > 0 {
		p := s.prompts[s.rng.IntN(len(s.prompts))]
		toks = p[:(1+s.rng.IntN(len(p)/bs))*bs]
	}
	toks = append(toks[:len(toks):len(toks)], tokens(s.rng.IntN(1_000_000), 1+s.rng.IntN(6))...)
	s.prompts = append(s.prompts, toks)
	return toks
}

// cached returns how many blocks of a prompt the engine holds from its start on.
func (s *sequence) cached(toks []uint32) (n int) {
	for n < len(toks)/bs && s.copies[s.hash(toks[:(n+1)*bs])] > 0 {
		n++
	}
	return n
}

// removals returns the removals of up to n random copies, in the middle of chains too.
func (s *sequence) removals(n int) (out []kvwire.Event) {
	for range n {
		all := s.sorted()
		if len(all) == 0 {
			break
		}
		out = append(out, s.removal(all[s.rng.IntN(len(all))]))
	}
	return out
}

// storing returns the stored event of a prompt's blocks that are not cached.
func (s *sequence) storing() []kvwire.Event {
	toks := s.prompt()
	if n := s.cached(toks); n < len(toks)/bs {
		return []kvwire.Event{s.event(toks, n, len(toks)/bs)}
	}
	return nil
}

// step does one thing that engines, or networks, do.
func (s *sequence) step(r *rig, rank kv.WorkerRank) {
	switch k := s.rng.IntN(100); {
	case k < 40:
		s.publish(s.storing()...)
	case k < 50: // a second copy of a prefix
		if len(s.prompts) > 0 {
			p := s.prompts[s.rng.IntN(len(s.prompts))]
			if n := s.cached(p); n > 0 {
				from := s.rng.IntN(n)
				s.publish(s.event(p, from, n))
			}
		}
	case k < 70:
		s.publish(s.removals(1 + s.rng.IntN(4))...)
	case k < 76: // one step that does both
		s.publish(append(s.removals(2), s.storing()...)...)
	case k < 80: // a child before its parent
		toks := s.prompt()
		n, end := s.cached(toks), len(toks)/bs
		if end-n >= 2 {
			mid := n + 1 + s.rng.IntN(end-n-1)
			parent, child := s.event(toks, n, mid), s.event(toks, mid, end)
			s.publish(child)
			s.publish(parent)
		}
	case k < 84:
		s.clear()
		s.holes = false
	case k < 91: // lost on the way, but the engine still has it
		s.pub.Drop(1 + s.rng.IntN(3))
		for range 4 {
			s.publish(append(s.removals(1), s.storing()...)...)
		}
	case k < 94: // lost for good
		s.pub.Skip(1 + s.rng.IntN(3))
		s.holes = true
		for range 4 {
			s.publish(append(s.removals(1), s.storing()...)...)
		}
	case k < 96:
		s.restart()
		s.prompts, s.holes = nil, false
	case k < 98:
		r.consumer.Resync(rank, "test")
	}
}

func TestDifferential_IndexEqualsEngine(t *testing.T) {
	const lanes = 8
	r := newRig(t, rigConfig{})
	for lane := range lanes {
		t.Run(fmt.Sprintf("lane=%d", lane), func(t *testing.T) {
			t.Parallel()
			r := *r
			r.t = t
			rank := kv.WorkerRank{ID: fmt.Sprintf("w%d", lane)}
			s := &sequence{engine: newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})}
			s.relay, _ = r.relay(s.engine, r.bus.Local(), func(c *RelayConfig) { c.Worker = rank.ID })
			for i := range cycles(200) / lanes {
				seed := uint64(lane*1_000_000 + i)
				s.rng = rand.New(rand.NewPCG(seed, 7))
				for range 25 {
					s.step(&r, rank)
				}
				s.publish() // an empty step shows the loss of those before
				s.settle(&r, rank, seed)
				s.clear()
				s.prompts, s.holes = nil, false
			}
		})
	}
}

// settle waits until the index shows what the engine holds: all of it, or after losses
// that nothing can bring back, nothing else.
func (s *sequence) settle(r *rig, rank kv.WorkerRank, seed uint64) {
	r.t.Helper()
	if !s.holes {
		s.converge(r, rank, seed, FeedComplete)
		return
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		extra := 0
		for h := range r.held(rank) {
			if s.truth[h] == 0 {
				extra++
			}
		}
		if r.status(rank).State == FeedPartial && extra == 0 {
			break
		}
		if time.Now().After(deadline) {
			k := s.relay.sockets[0]
			r.t.Fatalf("seed %d: %d blocks of credit that the engine does not give, feed %+v, want %s; relay %+v, translator %+v, subscriber %+v, publisher %+v",
				seed, extra, r.status(rank), FeedPartial, s.relay.streams[0].info(), s.relay.streams[0].mu.tr.Stats(), k.sub.Stats(), s.pub.Stats())
		}
		<-time.After(time.Millisecond)
	}
	s.clear() // from here on all is known
	s.publish(s.storing()...)
	s.converge(r, rank, seed, FeedComplete)
}

func (s *sequence) converge(r *rig, rank kv.WorkerRank, seed uint64, state FeedState) {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !(r.equals(rank, s.truth) && r.status(rank).State == state) {
		if time.Now().After(deadline) {
			k := s.relay.sockets[0]
			r.t.Fatalf("seed %d: %d blocks in the index, %d in the engine, feed %+v, want %s; relay %+v, translator %+v, subscriber %+v, publisher %+v",
				seed, len(r.held(rank)), len(s.truth), r.status(rank), state, s.relay.streams[0].info(), s.relay.streams[0].mu.tr.Stats(), k.sub.Stats(), s.pub.Stats())
		}
		<-time.After(time.Millisecond)
	}
}
