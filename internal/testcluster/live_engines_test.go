package testcluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// engines are the personalities of the simulated worker.
var engines = []string{"vllm", "sglang"}

// TestLive_BothPersonalities plays one scene with each engine: chats, streamed and not,
// whose second turns find their prefix; a client that leaves in mid-stream; and an
// explanation that rests on the engine's tokens, or on text where it has no tokenizer.
func TestLive_BothPersonalities(t *testing.T) {
	for _, like := range engines {
		t.Run(like, func(t *testing.T) {
			args := []string{"--like", like, "--speed-up", "4"}
			workers := []*liveWorker{
				startWorker(t, "w1", eventsAndReplay, args...),
				startWorker(t, "w2", eventsAndReplay, args...),
			}
			p := startProxy(t, "proxy", "-w", workers[0].flag(true), "-w", workers[1].flag(true))
			waitFor(t, "the proxy to be ready", p.isReady)

			for _, stream := range []bool{true, false} {
				c := newChat(7, 600, 24)
				c.stream, c.usage = stream, true
				u := newUser()
				first := ""
				for turn := range 3 {
					c.say(60)
					a := u.turn(t.Context(), p.url, c)
					switch {
					case a.outcome != whole:
						t.Fatalf("stream %v, turn %d: %v: %s", stream, turn+1, a.outcome, a.reason)
					case turn == 0:
						first = a.worker
					case a.worker != first:
						t.Errorf("stream %v, turn %d went to %s, the first to %s", stream, turn+1, a.worker, first)
					case a.cached < 600:
						t.Errorf("stream %v, turn %d: %d of %d tokens cached", stream, turn+1, a.cached, a.prompt)
					}
					settle(t, p, workers, c.body())
				}
				u.close()
				d, err := p.explain(c.body())
				if err != nil {
					t.Fatal(err)
				}
				if d.PromptSource != "engine" || d.Worker != first || d.overlap(first) == 0 {
					t.Errorf("stream %v: explained as %+v", stream, d)
				}
			}
			for _, stream := range []bool{true, false} {
				disconnect(t, p, workers, stream)
			}
		})
	}
}

// settle waits until the index equals the engines' caches, so that a turn that follows
// can be routed by what the turn before left there.
func settle(t *testing.T, p *liveProxy, workers []*liveWorker, prompts ...[]byte) {
	t.Helper()
	waitFor(t, "the index to equal the engines", func() error { return p.equals(t, workers, prompts) })
}

// disconnect leaves a long request in its middle and measures how long its engine works
// on. Nothing else runs.
func disconnect(t *testing.T, p *liveProxy, workers []*liveWorker, stream bool) {
	t.Helper()
	c := newChat(99, 50, 5000)
	c.stream = stream
	c.say(10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan answer, 1)
	go func() { ended <- newUser().send(ctx, p.url, c.body(), stream) }() // received below
	busy := func(want float64) error {
		sum := 0.0
		for _, w := range workers {
			n, err := w.running()
			if err != nil {
				return err
			}
			sum += n
		}
		if sum != want {
			return fmt.Errorf("%v requests run, not %v", sum, want)
		}
		return nil
	}
	waitFor(t, "an engine to work", func() error { return busy(1) })
	sleep(ctx, 100*time.Millisecond) // into the stream
	late := starvation()
	cancel()
	took, err := poll(5*time.Second, func() error { return busy(0) })
	slack := 4*late() + 50*time.Millisecond // four processes take part, and the poll
	if limit := 100*time.Millisecond + slack; err != nil || took > limit {
		t.Errorf("stream %v: the engine worked on for %v after its client left, limit %v: %v", stream, took, limit, err)
	}
	if a := <-ended; a.outcome != failed {
		t.Errorf("stream %v: the client that left has an answer that is %v: %s", stream, a.outcome, a.reason)
	}
	waitFor(t, "the proxy to have let go", func() error {
		now, err := p.resources()
		if err == nil && now.inflight != 0 {
			err = fmt.Errorf("%v requests in flight", now.inflight)
		}
		return err
	})
}

// TestLive_NoTokenizer: without a tokenizer endpoint prompts are known by their text, and
// the proxy says why.
func TestLive_NoTokenizer(t *testing.T) {
	for _, like := range engines {
		t.Run(like, func(t *testing.T) {
			t.Parallel()
			args := []string{"--like", like, "--no-tokenize", "--speed-up", "10"}
			w1, w2 := startWorker(t, "w1", noEvents, args...), startWorker(t, "w2", noEvents, args...)
			p := startProxy(t, "proxy", "-w", w1.flag(true), "-w", w2.flag(true))
			waitFor(t, "the proxy to take requests", func() error { return servesNow(p) })
			u := newUser()
			defer u.close()
			back := 0
			for i := range 10 {
				c := newChat(uint64(100+i), 600, 8)
				c.usage = true
				c.say(20)
				first := u.turn(t.Context(), p.url, c)
				c.say(20)
				second := u.turn(t.Context(), p.url, c)
				if first.outcome != whole || second.outcome != whole {
					t.Fatalf("%v %s; %v %s", first.outcome, first.reason, second.outcome, second.reason)
				}
				if second.worker == first.worker && second.cached > 0 {
					back++
				}
				d, err := p.explain(c.body())
				if err != nil {
					t.Fatal(err)
				}
				if d.PromptSource != "text" || !strings.Contains(d.SourceReason, "tokenizer") {
					t.Fatalf("prompt source %q because of %q", d.PromptSource, d.SourceReason)
				}
			}
			if back < 10 {
				t.Errorf("%d of 10 second turns returned to their worker", back)
			}
		})
	}
}
