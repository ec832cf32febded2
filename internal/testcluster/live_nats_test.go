package testcluster_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLive_NATSAwayUnderLoad takes the NATS server away under load for long enough that
// the small caches of the workers are replaced. No request may fail, readiness says
// degraded, and 3 s after the server is back both indexes equal the engines: what is
// gone earns no credit, what is new earns all of it.
func TestLive_NATSAwayUnderLoad(t *testing.T) {
	away := 10 * time.Second
	if soak {
		away = 150 * time.Second
	}
	seed := testSeed(t)
	// 200 blocks a worker; a conversation of the load below takes about 15.
	c := startCluster(t, 2, "--speed-up", "4", "--capacity-tokens", "12800")
	l := load{clients: 6, words: 500, say: 60, reply: 24, turns: 6, think: 100 * time.Millisecond}

	// Conversations that will be evicted meanwhile, each held by one worker.
	var old [][]byte
	u := newUser()
	for i := range 6 {
		chat := newChat(seed+uint64(i), 400, 8)
		chat.say(20)
		if a := u.turn(t.Context(), c.proxies[i%2].url, chat); a.outcome != whole {
			t.Fatalf("%v: %s", a.outcome, a.reason)
		}
		chat.say(20)
		old = append(old, chat.body())
	}
	for _, p := range c.proxies {
		settle(t, p, c.workers, old...)
		if n := credited(t, p, c.workers, old); n != len(old) {
			t.Fatalf("%s credits %d of %d conversations before", p.name, n, len(old))
		}
	}

	under, stopLoad := context.WithCancel(t.Context())
	defer stopLoad()
	var n *tally
	var wg sync.WaitGroup
	wg.Go(func() { n = l.run(under, t, seed, c.proxies) })
	sleep(t.Context(), time.Second)
	c.nats.kill()
	gone := time.Now()
	for _, p := range c.proxies {
		waitFor(t, p.name+" to say degraded", func() error { return saysDegraded(p, "NATS") })
	}
	sleep(t.Context(), away-time.Since(gone))
	for _, p := range c.proxies {
		if err := saysDegraded(p, "NATS"); err != nil {
			t.Error(err)
		}
	}
	for i, body := range old {
		for _, w := range c.workers {
			if held := w.truth(t).overlap(w.tokens(t, body)); held != 0 {
				t.Errorf("conversation %d still has %d blocks on %s: the load is too small to say anything", i, held, w.id)
			}
		}
	}

	late := starvation()
	c.nats.start()
	waitFor(t, "NATS to accept connections", c.nats.accepts)
	back := time.Now()
	sleep(t.Context(), 500*time.Millisecond) // deltas flow while the states are fetched
	stopLoad()
	wg.Wait()
	fresh := newChat(seed+77, 300, 8)
	fresh.say(20)
	if a := u.turn(t.Context(), c.proxies[0].url, fresh); a.outcome != whole {
		t.Errorf("%v: %s", a.outcome, a.reason)
	}
	u.close()
	fresh.say(20)
	prompts := append(slices.Clone(old), fresh.body())
	for _, p := range c.proxies {
		waitFor(t, "the index to equal the engines", func() error { return p.equals(t, c.workers, prompts) })
	}
	slack := 4 * late()
	if took := time.Since(back); took > 3*time.Second+slack {
		t.Errorf("both indexes equal the engines %v after NATS accepted connections; 3s are promised, and %v for a busy machine", took, slack)
	} else {
		t.Logf("%v; both indexes equal the engines %v after NATS accepted connections", n, took)
	}
	if n.counts[failed]+n.counts[truncated] > 0 || n.counts[whole] < 50 {
		t.Errorf("%v: %s %q", n, n.failure, n.reasons)
	}
	for _, p := range c.proxies {
		if held := credited(t, p, c.workers, old); held != 0 {
			t.Errorf("%s credits %d conversations that no worker holds", p.name, held)
		}
		if held := credited(t, p, c.workers, [][]byte{fresh.body()}); held != 1 {
			t.Errorf("%s does not credit the conversation that was just held", p.name)
		}
		waitFor(t, p.name+" to be ready again", func() error {
			if err := p.isReady(); err != nil {
				return err
			}
			return p.knows("complete", c.workers...)
		})
	}
}

// saysDegraded is an error unless the proxy takes requests and names what is wrong.
func saysDegraded(p *liveProxy, what string) error {
	code, status, reasons, err := p.readyz()
	if err != nil {
		return err
	}
	if code != http.StatusOK || status != "degraded" || !strings.Contains(strings.Join(reasons, "; "), what) {
		return fmt.Errorf("%s: readyz is %d %s %q", p.name, code, status, reasons)
	}
	return nil
}

// credited counts the prompts of which the proxy credits some worker with a block.
func credited(t *testing.T, p *liveProxy, workers []*liveWorker, prompts [][]byte) (n int) {
	t.Helper()
	for _, body := range prompts {
		d, err := p.explain(body)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(workers, func(w *liveWorker) bool { return d.overlap(w.id) > 0 }) {
			n++
		}
	}
	return n
}
