package sim

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// clock drives an engine in virtual time.
type clock struct {
	now    time.Time
	engine *Engine
	events []kvwire.Event
}

func newClock(e *Engine) *clock { return &clock{now: time.Unix(1_700_000_000, 0), engine: e} }

// step runs one step and returns what advanced; nil when the engine is idle.
func (c *clock) step() []Progress {
	d, ok := c.engine.Begin(c.now)
	if !ok {
		return nil
	}
	c.now = c.now.Add(d)
	p := c.engine.End(c.now)
	for _, ev := range c.engine.Events() {
		ev.Hashes = slices.Clone(ev.Hashes)
		c.events = append(c.events, ev)
	}
	return p
}

// drain runs the engine until it is idle and returns the time that took.
func (c *clock) drain() time.Duration {
	start := c.now
	for {
		if _, ok := c.engine.Begin(c.now); !ok {
			return c.now.Sub(start)
		}
		c.engine.End(c.now)
		c.now = c.now.Add(time.Millisecond)
	}
}

func someTokens(n int, salt uint32) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = salt<<20 + uint32(i)
	}
	return t
}

func submit(t *testing.T, e *Engine, s *Seq) *Seq {
	t.Helper()
	if err := e.Submit(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEngine_TimesOfTheLinearProfile(t *testing.T) {
	e := NewEngine(EngineConfig{})
	c := newClock(e)
	s := submit(t, e, &Seq{Tokens: someTokens(3000, 1), OutputTokens: 3})
	var got []time.Duration
	start := c.now
	for s.State != StateFinished {
		for _, p := range c.step() {
			if p.NewTokens == 1 {
				got = append(got, c.now.Sub(start))
			}
		}
	}
	prefill := 3000*time.Second/8000 + 2*8*time.Millisecond // two chunks
	decode := func(kvTokens int) time.Duration {
		return 8*time.Millisecond + 100*time.Microsecond + time.Duration(kvTokens)*20
	}
	want := []time.Duration{prefill, prefill + decode(3001), prefill + decode(3001) + decode(3002)}
	if !slices.Equal(got, want) {
		t.Fatalf("tokens at %v, want %v", got, want)
	}
}

func TestEngine_PolynomialProfileMatchesItsTable(t *testing.T) {
	f := func(w StepWork, want float64) {
		t.Helper()
		got := float64(PolynomialProfile{}.Step(w)) / float64(time.Millisecond)
		if got < want-0.06 || got > want+0.06 {
			t.Errorf("%+v: %.2f ms, want %.1f", w, got, want)
		}
	}
	for tokens, ms := range map[int]float64{128: 18.5, 512: 24.4, 1024: 32.5, 4096: 85.8, 8192: 169.1, 32768: 966.1} {
		f(StepWork{PrefillTokens: tokens}, ms)
	}
	for kvTokens, ms := range map[int]float64{0: 5.7, 25: 17.6, 50: 26.3, 75: 31.8, 100: 34.0} {
		f(StepWork{DecodeSeqs: 1, KVTokens: kvTokens, CapacityTokens: 100}, ms)
	}
}

func TestEngine_SpeedUpDividesEveryStep(t *testing.T) {
	f := func(speedUp float64) time.Duration {
		e := NewEngine(EngineConfig{SpeedUp: speedUp})
		submit(t, e, &Seq{Tokens: someTokens(800, 1), OutputTokens: 1})
		d, _ := e.Begin(time.Time{})
		return d
	}
	if a, b := f(1), f(10); a != 10*b {
		t.Fatalf("step takes %v, with speed-up 10 %v", a, b)
	}
}

// TestEngine_NextTurnHitsGeneratedBlocks: both engines cache what they generated, up to
// the last token, whose KV was never computed.
func TestEngine_NextTurnHitsGeneratedBlocks(t *testing.T) {
	for _, p := range []Personality{VLLM, SGLang} {
		e := NewEngine(EngineConfig{BlockSize: 16, Personality: p})
		c := newClock(e)
		a := submit(t, e, &Seq{Tokens: someTokens(100, 1), OutputTokens: 61}) // 160 of 161 tokens computed
		c.drain()
		if a.CachedTokens != 0 || a.Generated != 61 {
			t.Fatalf("%s: first turn: %d cached, %d generated", p, a.CachedTokens, a.Generated)
		}
		next := append(slices.Clone(a.Tokens), a.Generation()...)
		b := submit(t, e, &Seq{Tokens: append(next, someTokens(50, 2)...), OutputTokens: 1})
		c.drain()
		if b.CachedTokens != 160 {
			t.Errorf("%s: second turn finds %d tokens cached, want 160", p, b.CachedTokens)
		}
		// A prompt that is cached to its end still computes its last token.
		d := submit(t, e, &Seq{Tokens: next[:160], OutputTokens: 1})
		c.drain()
		if d.CachedTokens != 144 {
			t.Errorf("%s: repeated prompt finds %d tokens cached, want 144", p, d.CachedTokens)
		}
	}
}

func TestEngine_StoreTimingIsThePersonalitys(t *testing.T) {
	f := func(p Personality, perBlock bool, want ...int) {
		t.Helper()
		e := NewEngine(EngineConfig{BlockSize: 16, ChunkTokens: 64, Personality: p, EventPerBlock: perBlock})
		c := newClock(e)
		submit(t, e, &Seq{Tokens: someTokens(100, 1), OutputTokens: 30})
		var got []int
		for c.step() != nil || e.Stats().Running > 0 {
		}
		for _, ev := range c.events {
			got = append(got, len(ev.Hashes))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: stored events of %v blocks, want %v", p, got, want)
		}
	}
	f(VLLM, false, 4, 2, 1, 1) // two chunks, then decode blocks as they fill
	f(SGLang, false, 4, 2, 2)  // two chunks, then the rest at finish
	f(SGLang, true, 1, 1, 1, 1, 1, 1, 1, 1)
}

func TestEngine_NamespacesDoNotMeet(t *testing.T) {
	e := NewEngine(EngineConfig{BlockSize: 16})
	c := newClock(e)
	for _, n := range []kv.Namespace{{}, {LoRA: "x"}, {Salt: "x"}, {LoRA: "x", Salt: "x"}} {
		for i, want := range []int{0, 48} {
			s := submit(t, e, &Seq{Tokens: someTokens(64, 1), Namespace: n, OutputTokens: 1})
			c.drain()
			if s.CachedTokens != want {
				t.Errorf("%+v, request %d: %d cached, want %d", n, i, s.CachedTokens, want)
			}
		}
	}
}

func TestEngine_MediaIsPartOfTheIdentity(t *testing.T) {
	e := NewEngine(EngineConfig{BlockSize: 16})
	c := newClock(e)
	ask := func(hash uint64) int {
		s := submit(t, e, &Seq{Tokens: someTokens(64, 1), Media: []Media{{Start: 20, End: 30, Hash: hash}}, OutputTokens: 1})
		c.drain()
		return s.CachedTokens
	}
	if a, b, other := ask(7), ask(7), ask(8); a != 0 || b != 48 || other != 16 {
		t.Fatalf("cached %d, same image %d, other image %d; want 0, 48, 16", a, b, other)
	}
}

func TestEngine_RefusesWhatThePoolCannotHold(t *testing.T) {
	e := NewEngine(EngineConfig{BlockSize: 16, CapacityTokens: 160})
	s := &Seq{Tokens: someTokens(100, 1), OutputTokens: 61}
	if err := e.Submit(s); !errors.Is(err, ErrTooLarge) || s.State != StateRejected {
		t.Fatalf("err %v, state %v", err, s.State)
	}
	ok := submit(t, e, &Seq{Tokens: someTokens(100, 1), OutputTokens: 60})
	newClock(e).drain()
	if ok.State != StateFinished {
		t.Fatalf("a sequence of just the capacity ends in state %v", ok.State)
	}
}

func TestEngine_PreemptsTheNewest(t *testing.T) {
	e := NewEngine(EngineConfig{BlockSize: 16, CapacityTokens: 16 * 20})
	c := newClock(e)
	a := submit(t, e, &Seq{Tokens: someTokens(100, 1), OutputTokens: 200})
	b := submit(t, e, &Seq{Tokens: someTokens(100, 2), OutputTokens: 200})
	for b.Generated == 0 || b.State == StateRunning {
		c.step()
	}
	if a.State != StateRunning || b.State != StateWaiting || e.Stats().Preemptions != 1 {
		t.Fatalf("older %v, newer %v, %d preemptions", a.State, b.State, e.Stats().Preemptions)
	}
	c.drain()
	if a.Generated != 200 || b.Generated != 200 || b.CachedTokens != 0 {
		t.Fatalf("generated %d and %d; %d cached", a.Generated, b.Generated, b.CachedTokens)
	}
}

func TestEngine_ClearNeedsAnIdleCache(t *testing.T) {
	e := NewEngine(EngineConfig{BlockSize: 16})
	c := newClock(e)
	submit(t, e, &Seq{Tokens: someTokens(64, 1), OutputTokens: 5})
	c.step()
	if e.Clear() {
		t.Fatal("cleared while a sequence holds blocks")
	}
	c.drain()
	e.Events()
	if !e.Clear() || len(e.Truth()) != 0 {
		t.Fatal("idle engine does not clear")
	}
	if n := len(e.Events()); n != 0 {
		t.Fatalf("vLLM says %d things outside a step", n)
	}
	submit(t, e, &Seq{Tokens: someTokens(64, 1), OutputTokens: 1})
	c.events = nil
	c.step()
	if len(c.events) != 2 || c.events[0].Kind != kv.EventCleared {
		t.Fatalf("next step says %v", c.events)
	}
}

// TestEngine_RandomLives runs random sequences that share prefixes through a small
// pool. The engine's invariants hold after every step, and its events, applied with
// counts as a relay does, always give its truth.
func TestEngine_RandomLives(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := EngineConfig{
			BlockSize: []int{1, 4, 16}[r.IntN(3)], CapacityTokens: 640, ChunkTokens: 1 + r.IntN(128),
			MaxNumSeqs: 1 + r.IntN(8), Personality: []Personality{VLLM, SGLang}[r.IntN(2)],
			NoDuplicates: r.IntN(2) == 0, EventPerBlock: r.IntN(2) == 0, Seed: seed,
		}
		e := NewEngine(cfg)
		c := newClock(e)
		var live []*Seq
		copies := map[kvwire.EngineHash]int{}
		for range 400 {
			switch r.IntN(6) {
			case 0, 1:
				p := append(someTokens(r.IntN(200), uint32(r.IntN(3))), someTokens(1+r.IntN(100), uint32(r.IntN(9)))...)
				s := &Seq{Tokens: p, OutputTokens: r.IntN(80)}
				if r.IntN(4) == 0 {
					s.Namespace.Salt = "tenant"
				}
				live = append(live, submit(t, e, s))
			case 2:
				if len(live) > 0 && r.IntN(3) == 0 {
					e.Abort(live[r.IntN(len(live))])
				}
			case 3:
				if r.IntN(8) == 0 {
					e.Clear()
				}
			}
			if d, ok := e.Begin(c.now); ok {
				c.now = c.now.Add(d)
				if len(live) > 0 && r.IntN(20) == 0 {
					e.Abort(live[r.IntN(len(live))])
				}
				e.End(c.now)
			}
			if err := e.Check(); err != nil {
				t.Fatalf("seed %d %+v: %v", seed, cfg, err)
			}
			for _, ev := range e.Events() {
				switch ev.Kind {
				case kv.EventCleared:
					clear(copies)
				case kv.EventStored:
					if len(ev.Tokens) != len(ev.Hashes)*cfg.BlockSize {
						t.Fatalf("seed %d: %d tokens for %d blocks", seed, len(ev.Tokens), len(ev.Hashes))
					}
					if ev.HasParent && copies[ev.Parent] == 0 {
						t.Fatalf("seed %d: stored below a parent that is not held", seed)
					}
					for _, h := range ev.Hashes {
						copies[h]++
					}
				case kv.EventRemoved:
					for _, h := range ev.Hashes {
						if copies[h]--; copies[h] == 0 {
							delete(copies, h)
						}
					}
				}
			}
			if e.pendingClear() {
				continue // vLLM says so in its next step
			}
			truth := e.Truth()
			if len(truth) != len(copies) {
				t.Fatalf("seed %d %+v: %d prefixes held, events say %d", seed, cfg, len(truth), len(copies))
			}
			for _, h := range truth {
				if copies[h.Engine] != h.Copies {
					t.Fatalf("seed %d: %d copies, events say %d", seed, h.Copies, copies[h.Engine])
				}
				if _, ok := truth[h.Parent]; cfg.Personality == SGLang && !h.Root && !ok {
					t.Fatalf("seed %d: a prefix outlives its parent", seed)
				}
			}
		}
		c.drain()
		for _, s := range live {
			if s.State != StateFinished && s.State != StateAborted {
				t.Fatalf("seed %d: a sequence ends in state %d", seed, s.State)
			}
		}
		if st := e.Stats(); st.UsedBlocks != 0 || st.Running != 0 || st.Waiting != 0 {
			t.Fatalf("seed %d: idle engine %+v", seed, st)
		}
	}
}

func (e *Engine) pendingClear() bool { return len(e.pending.events) > 0 }

// BenchmarkEngine measures the seed workload's turn on one engine: a 60,000-token
// prompt whose prefix is cached, 3,000 new tokens, 1,000 output tokens.
func BenchmarkEngine(b *testing.B) {
	b.ReportAllocs()
	e := NewEngine(EngineConfig{})
	p := someTokens(60_000, 1)
	for i := 0; b.Loop(); i++ {
		s := &Seq{Tokens: append(slices.Clone(p[:57_000]), someTokens(3000, uint32(i+2))...), OutputTokens: 1000}
		if err := e.Submit(s); err != nil {
			b.Fatal(err)
		}
		for s.State != StateFinished {
			e.Begin(time.Time{})
			e.End(time.Time{})
			e.Events()
		}
	}
}

// BenchmarkEngine_Blocked measures a step while a long prompt waits for blocks.
func BenchmarkEngine_Blocked(b *testing.B) {
	b.ReportAllocs()
	e := NewEngine(EngineConfig{})
	head := someTokens(60_000, 1)
	for i := range 128 {
		s := &Seq{Tokens: append(slices.Clone(head), someTokens(40_000, uint32(i+2))...), OutputTokens: 200_000}
		if err := e.Submit(s); err != nil {
			b.Fatal(err)
		}
	}
	for e.Stats().KVTokens < 340_000 {
		e.Begin(time.Time{})
		e.End(time.Time{})
	}
	for b.Loop() {
		e.Begin(time.Time{})
		e.End(time.Time{})
		e.Events()
	}
}
