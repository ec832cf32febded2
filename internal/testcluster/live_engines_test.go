package testcluster_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
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
			for _, w := range workers {
				disconnect(t, p, w)
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

// disconnect leaves a long stream through the proxy in its middle, with w the only one
// that is busy, and measures how long the engine works on.
func disconnect(t *testing.T, p *liveProxy, w *liveWorker) {
	t.Helper()
	c := newChat(99, 50, 5000)
	c.say(10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", bytes.NewReader(c.body()))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 256)); err != nil {
		t.Fatal(err)
	}
	busy := resp.Header.Get("X-Warmroute-Worker")
	if busy != w.id {
		return // the other one has it: its turn to be looked at
	}
	if n, err := w.running(); err != nil || n != 1 {
		t.Fatalf("%s works on %v requests (%v), not on one", w.id, n, err)
	}
	late := starvation()
	cancel()
	took, err := poll(5*time.Second, func() error {
		n, err := w.running()
		if err == nil && n > 0 {
			err = fmt.Errorf("%v requests run", n)
		}
		return err
	})
	slack := 4*late() + 50*time.Millisecond // four processes take part, and the poll
	if limit := 100*time.Millisecond + slack; err != nil || took > limit {
		t.Errorf("%s worked on for %v after its client left, limit %v: %v", w.id, took, limit, err)
	}
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
			waitFor(t, "the proxy to be ready", func() error {
				_, err := p.explain(newChat(1, 10, 1).body())
				return err
			})
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
