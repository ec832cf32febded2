package testcluster_test

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestLive_FC65_TwoProxiesAgree sends the turns of each session to two proxies in turn.
// They share events, not sessions, and still choose the same worker.
func TestLive_FC65_TwoProxiesAgree(t *testing.T) {
	const sessions, turns = 20, 6
	c := startCluster(t, 3, "--speed-up", "10")
	var mu sync.Mutex
	same, later := 0, 0
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			u := newUser()
			defer u.close()
			for k := range sessions / 4 {
				chat := newChat(uint64(100*client+k), 1000, 16)
				before := ""
				for turn := range turns {
					chat.say(50)
					sleep(t.Context(), 40*time.Millisecond)
					a := u.turn(t.Context(), c.proxies[turn%2].url, chat)
					if a.outcome != whole {
						t.Errorf("%v: %s", a.outcome, a.reason)
						return
					}
					mu.Lock()
					if turn > 0 {
						later++
						if a.worker == before {
							same++
						}
					}
					mu.Unlock()
					before = a.worker
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d later turns went to the worker of the turn before", same, later)
	if later != sessions*(turns-1) || same*100 < later*90 {
		t.Errorf("%d of %d later turns went to the worker of the turn before, 90%% are promised\n%s\n%s", same, later, moved(c.proxies[0]), moved(c.proxies[1]))
	}
}

// Two proxies on one NATS server count each other's requests while they run, and say so
// in /debug/workers; one that is killed is forgotten within seconds.
func TestLive_PeersBookings(t *testing.T) {
	c := startCluster(t, 2)
	a, b := c.proxies[0], c.proxies[1]
	var running sync.WaitGroup
	defer running.Wait()
	counts := func(proxies, inflight int) func() error {
		return func() error {
			v, err := b.workers()
			if err != nil {
				return err
			}
			got, kv := 0, 0
			for _, r := range v.Routing {
				if r.Peers != nil {
					got, kv = got+r.Peers.Inflight, kv+r.Peers.KVTokens
				}
			}
			if len(v.Peers) != proxies || got != inflight || (kv > 0) != (inflight > 0) {
				return fmt.Errorf("%d other proxies with %d requests and %d KV tokens, want %d with %d", len(v.Peers), got, kv, proxies, inflight)
			}
			return nil
		}
	}
	waitFor(t, "the proxies to hear each other", counts(1, 0))
	for i := range 3 {
		running.Go(func() {
			u := newUser()
			defer u.close()
			chat := newChat(uint64(i), 200, 300)
			chat.say(20)
			if got := u.turn(t.Context(), a.url, chat); got.outcome != whole {
				t.Errorf("%v: %s", got.outcome, got.reason)
			}
		})
	}
	waitFor(t, "three requests of the other proxy", counts(1, 3))
	running.Wait()
	waitFor(t, "their end", counts(1, 0))
	a.kill()
	waitFor(t, "the dead proxy to be forgotten", counts(0, 0))
}
