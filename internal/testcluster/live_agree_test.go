package testcluster_test

import (
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
