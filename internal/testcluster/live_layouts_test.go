package testcluster_test

import (
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/kvwire"
)

// TestLive_EveryLayout runs a worker for each layout of KV events that engines have ever
// sent, all behind one proxy. What the proxy holds of each is what the worker has.
func TestLive_EveryLayout(t *testing.T) {
	var workers []*liveWorker
	var args []string
	for _, l := range kvwire.Layouts() {
		name := l.String()
		like := "vllm"
		if strings.HasPrefix(name, "sglang") {
			like = "sglang"
		}
		w := startWorker(t, name, eventsAndReplay, "--layout", name, "--like", like, "--model", name,
			"--block-size", "16", "--capacity-tokens", "4096", "--speed-up", "20")
		workers = append(workers, w)
		args = append(args, "-w", w.flag(true))
	}
	p := startProxy(t, "proxy", args...)
	waitFor(t, "the proxy to be ready", p.isReady)
	u := newUser()
	defer u.close()
	for i, w := range workers {
		var prompts [][]byte
		for k := range 3 {
			// Three conversations do not fit: the first is evicted in part or whole.
			c := newChat(uint64(10*i+k), 1200, 20)
			c.model, c.usage = w.id, true
			for turn := range 2 {
				c.say(30)
				a := u.turn(t.Context(), p.url, c)
				if a.outcome != whole || a.worker != w.id {
					t.Fatalf("%s: %v on %s: %s", w.id, a.outcome, a.worker, a.reason)
				}
				if turn > 0 && a.cached < 1200 {
					t.Errorf("%s: %d of %d tokens cached in the second turn", w.id, a.cached, a.prompt)
				}
			}
			c.say(30)
			prompts = append(prompts, c.body())
		}
		waitFor(t, w.id+" to be complete", func() error { return p.knows("complete", w) })
		settle(t, p, []*liveWorker{w}, prompts...)
	}
}

// TestLive_FC58_HashesOfTheirOwn: engines name the same blocks by different hashes, one per
// process. Both are credited for the same prompt.
func TestLive_FC58_HashesOfTheirOwn(t *testing.T) {
	t.Parallel()
	workers := []*liveWorker{
		startWorker(t, "w1", eventsAndReplay, "--seed", "1", "--speed-up", "10"),
		startWorker(t, "w2", eventsAndReplay, "--seed", "2", "--speed-up", "10"),
		startWorker(t, "w3", eventsAndReplay, "--seed", "3", "--like", "sglang", "--speed-up", "10"),
	}
	var args []string
	for _, w := range workers {
		args = append(args, "-w", w.flag(true))
	}
	u := newUser()
	defer u.close()
	body := newChat(5, 640, 8).body()
	for _, w := range workers {
		if a := u.send(t.Context(), w.url, body, true); a.outcome != whole {
			t.Fatalf("%s, asked directly: %v: %s", w.id, a.outcome, a.reason)
		}
	}
	p := startProxy(t, "proxy", args...)
	waitFor(t, "complete feeds", func() error { return p.knows("complete", workers...) })
	settle(t, p, workers, body)
	d, err := p.explain(body)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		if got := d.overlap(w.id); got < 10 {
			t.Errorf("%s is credited with %d blocks of a prompt of %d tokens", w.id, got, d.PromptTokens)
		}
	}
}
