package testcluster_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// warm fills the workers with conversations that no proxy has seen.
func warm(t *testing.T, workers []*liveWorker, seed uint64) {
	t.Helper()
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() {
			u := newUser()
			defer u.close()
			for k := range 5 {
				c := newChat(seed+uint64(100*i+k), 400, 8)
				for range 2 {
					c.say(30)
					if a := u.turn(t.Context(), w.url, c); a.outcome != whole {
						t.Errorf("%s, asked directly: %v: %s", w.id, a.outcome, a.reason)
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestLive_AttachToWarmEngine attaches a proxy to engines that have been at work and have
// no replay socket. What they hold from before cannot be known, and the proxy says so and
// how to mend it; new conversations still return to their worker.
func TestLive_AttachToWarmEngine(t *testing.T) {
	var workers []*liveWorker
	var args []string
	for i := range 3 {
		w := startWorker(t, fmt.Sprintf("w%d", i+1), eventsOnly, "--speed-up", "10")
		workers = append(workers, w)
		args = append(args, "-w", w.flag(true))
	}
	warm(t, workers, 1)
	p := startProxy(t, "proxy", args...)
	waitFor(t, "the relays to listen", func() error { return p.knows("partial", workers...) })

	// One request at a time, conversations interleaved: no worker is ever busy with
	// another's prompt, for which leaving it would be right, and what the proxy knows of
	// a conversation is as old as a round.
	const turns = 4
	chats, first := make([]*chat, 20), make([]string, 20)
	u := newUser()
	defer u.close()
	returned, later := 0, 0
	for turn := range turns {
		for i := range chats {
			if turn == 0 {
				chats[i] = newChat(uint64(1000+i), 1000, 12)
			}
			chats[i].say(40)
			a := u.turn(t.Context(), p.url, chats[i])
			if a.outcome != whole {
				t.Fatalf("%v: %s", a.outcome, a.reason)
			}
			if turn == 0 {
				first[i] = a.worker
				continue
			}
			later++
			if a.worker == first[i] {
				returned++
			}
		}
	}
	t.Logf("%d of %d later turns returned to their worker; first turns: %q", returned, later, first)
	if returned*100 < later*95 {
		t.Errorf("%d of %d later turns returned to their worker, 95%% are promised\n%s", returned, later, moved(p))
	}
	for _, w := range workers {
		if !slices.Contains(first, w.id) {
			t.Errorf("%s, as idle as the others, got none of %d new conversations", w.id, len(first))
		}
	}
	for _, w := range workers {
		f, err := p.feed(w.id)
		if err != nil {
			t.Fatal(err)
		}
		if f.State != "partial" || !strings.Contains(f.Reason, "replay_endpoint") || f.Blocks == 0 {
			t.Errorf("feed of %s is %s with %d blocks: %q", w.id, f.State, f.Blocks, f.Reason)
		}
	}
}

// moved returns the last decisions of a proxy that left a prefix behind.
func moved(p *liveProxy) string {
	text, err := get(p.admin + "/debug/route?text")
	if err != nil {
		return err.Error()
	}
	var out []string
	for d := range strings.SplitSeq(string(text), "\n\n") {
		if strings.Contains(d, "<- ") && !strings.Contains(d, "<- overlap") && !strings.Contains(d, "<- cold") {
			out = append(out, d)
		}
	}
	return strings.Join(out, "\n")
}

// TestLive_AttachWithReplaySocket: with a replay socket everything from before is known.
func TestLive_AttachWithReplaySocket(t *testing.T) {
	t.Parallel()
	workers := []*liveWorker{
		startWorker(t, "w1", eventsAndReplay, "--speed-up", "10"),
		startWorker(t, "w2", eventsAndReplay, "--speed-up", "10", "--like", "sglang"),
	}
	warm(t, workers, 2)
	p := startProxy(t, "proxy", "-w", workers[0].flag(true), "-w", workers[1].flag(true))
	waitFor(t, "complete feeds", func() error { return p.knows("complete", workers...) })
	settle(t, p, workers)
}

// TestLive_RelayKeepsStateOverItsRestart: where the engine has no replay socket but the
// relay a state_dir, a relay that stops and starts again while the engine lives is
// complete again with the engine's next event, and the proxy's index is exact.
func TestLive_RelayKeepsStateOverItsRestart(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	w := startWorker(t, "w1", eventsOnly, "--speed-up", "10")
	relay := startRelay(t, w, n, "--state-dir", t.TempDir())
	p := startProxy(t, "proxy", "--nats", n.url(), "-w", w.flag(false))
	waitFor(t, "the relay to be heard", func() error {
		f, err := p.feed(w.id)
		if err == nil && !strings.Contains(f.Reason, "no KV event yet") {
			err = fmt.Errorf("feed is %s: %s", f.State, f.Reason)
		}
		return err
	})
	warm(t, []*liveWorker{w}, 3)
	waitFor(t, "a complete feed", func() error { return p.knows("complete", w) })
	settle(t, p, []*liveWorker{w})

	if code := relay.stop(); code != 0 {
		t.Errorf("relay ended with code %d", code)
	}
	waitFor(t, "the stopped relay to be seen", func() error { return p.knows("stale", w) })
	relay.start()
	waitFor(t, "the relay to be back", func() error {
		// Until the engine proves that it is the same process, nothing is credited.
		f, err := p.feed(w.id)
		if err == nil && (f.State != "partial" || f.Blocks != 0 || !strings.Contains(f.Reason, "state_dir")) {
			err = fmt.Errorf("feed is %s with %d blocks: %s", f.State, f.Blocks, f.Reason)
		}
		return err
	})
	warm(t, []*liveWorker{w}, 4)
	waitFor(t, "a complete feed", func() error { return p.knows("complete", w) })
	settle(t, p, []*liveWorker{w})
}

// TestLive_FarewellOfARelay: a relay that stops says so, and its worker's blocks stay
// until they are 15 s old.
func TestLive_FarewellOfARelay(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	w := startWorker(t, "w1", eventsAndReplay, "--speed-up", "10")
	relay := startRelay(t, w, n)
	p := startProxy(t, "proxy", "--nats", n.url(), "-w", w.flag(false))
	warm(t, []*liveWorker{w}, 5)
	waitFor(t, "a complete feed", func() error { return p.knows("complete", w) })
	relay.stop()
	from := time.Now()
	waitFor(t, "the stopped relay to be seen", func() error { return saysDegraded(p, "has stopped") })
	if f, err := p.feed(w.id); err != nil || f.Blocks == 0 && time.Since(from) < 10*time.Second {
		t.Errorf("%+v (%v)", f, err)
	}
	// Requests are served all the while.
	c := newChat(6, 100, 8)
	c.say(10)
	u := newUser()
	defer u.close()
	if a := u.turn(t.Context(), p.url, c); a.outcome != whole {
		t.Errorf("%v: %s", a.outcome, a.reason)
	}
}
