package testcluster_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// streams begins n long streams through the proxy and returns once all of them have
// their first token; the answers come from the channel.
func streams(t *testing.T, p *liveProxy, n, tokens int) <-chan answer {
	t.Helper()
	answers := make(chan answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			u := newUser()
			defer u.close()
			c := newChat(uint64(i), 20, tokens)
			c.say(5)
			answers <- u.turn(t.Context(), p.url, c)
		})
	}
	t.Cleanup(wg.Wait)
	waitFor(t, "the streams to run", func() error {
		m, err := p.metrics()
		if err == nil && m.sum("warmroute_proxy_ttft_seconds_count") < float64(n) {
			err = fmt.Errorf("%v streams have a token", m.sum("warmroute_proxy_ttft_seconds_count"))
		}
		return err
	})
	return answers
}

// TestLive_FC69_Drains: after SIGTERM readiness says no, no new request is taken, open
// streams run to their end, and the proxy exits with code 0.
func TestLive_FC69_Drains(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", eventsAndReplay)
	p := startProxy(t, "proxy", "-w", w.flag(true))
	waitFor(t, "the proxy to be ready", p.isReady)
	const n = 20
	answers := streams(t, p, n, 200) // 2 s
	p.signal(syscall.SIGTERM)
	waitFor(t, "readiness to say no", func() error {
		code, status, _, err := p.readyz()
		if err == nil && (code != http.StatusServiceUnavailable || status != "draining") {
			err = fmt.Errorf("readyz is %d %s", code, status)
		}
		return err
	})
	u := newUser()
	defer u.close()
	c := newChat(1, 20, 5)
	c.say(5)
	if a := u.turn(t.Context(), p.url, c); a.outcome != failed {
		t.Errorf("a request during the drain: %v: %s", a.outcome, a.reason)
	}
	for range n {
		if a := <-answers; a.outcome != whole {
			t.Errorf("a stream that was open at SIGTERM: %v: %s", a.outcome, a.reason)
		}
	}
	if !p.wait(5 * time.Second) {
		t.Fatal("the proxy runs on after its last stream")
	}
	if p.exitCode() != 0 {
		t.Errorf("exit code %d", p.exitCode())
	}
	if text := p.lifeText(); strings.Contains(text, "level=ERROR") {
		t.Errorf("a drain is no error:\n%s", text)
	}
}

// TestLive_FC69_GraceEnds: what is not over within the grace is broken off visibly, and a
// second signal does not wait at all.
func TestLive_FC69_GraceEnds(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", noEvents)
	for _, tt := range []struct {
		name, grace string
		second      bool
		code        int
	}{
		{"grace", "500ms", false, 0},
		{"second signal", "60s", true, 1},
	} {
		p := startProxy(t, "proxy", "-w", w.flag(true), "--grace", tt.grace)
		waitFor(t, "the proxy to take requests", func() error { return servesNow(p) })
		answers := streams(t, p, 4, 5000)
		from := time.Now()
		p.signal(syscall.SIGTERM)
		if tt.second {
			waitFor(t, "the drain", func() error {
				if !strings.Contains(p.lifeText(), "draining") {
					return fmt.Errorf("nothing is said of it")
				}
				return nil
			})
			// One that comes at once with the first counts as the same.
			for range 50 {
				p.signal(syscall.SIGTERM)
				if p.wait(100 * time.Millisecond) {
					break
				}
			}
		}
		if !p.wait(10 * time.Second) {
			t.Fatalf("%s: the proxy runs on", tt.name)
		}
		t.Logf("%s: the proxy ended after %v", tt.name, time.Since(from).Round(time.Millisecond))
		if p.exitCode() != tt.code {
			t.Errorf("%s: exit code %d, not %d:\n%s", tt.name, p.exitCode(), tt.code, p.lifeText())
		}
		for range 4 {
			if a := <-answers; a.outcome != failed {
				t.Errorf("%s: %v: %s", tt.name, a.outcome, a.reason)
			}
		}
	}
	waitFor(t, "the engine to be idle", func() error {
		n, err := w.running()
		if err == nil && n > 0 {
			err = fmt.Errorf("%v requests run", n)
		}
		return err
	})
}

// servesNow is an error unless a request would be routed. Readiness also tells of events.
func servesNow(p *liveProxy) error { _, err := p.explain(newChat(1, 10, 1).body()); return err }

// TestLive_ReloadKeepsStreams changes the file of a running proxy: a worker that is taken
// out finishes what it has, new requests go to the others, and a file that is wrong
// changes nothing.
func TestLive_ReloadKeepsStreams(t *testing.T) {
	t.Parallel()
	w1, w2 := startWorker(t, "w1", eventsAndReplay), startWorker(t, "w2", eventsAndReplay)
	file := filepath.Join(t.TempDir(), "warmroute.yaml")
	write := func(text string) {
		t.Helper()
		next := file + ".next" // replaced as editors do
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(w *liveWorker) string {
		return fmt.Sprintf("  - id: %s\n    url: %s\n    events: %s\n    replay: %s\n", w.id, w.url, w.events, w.replay)
	}
	write("workers:\n" + entry(w1))
	p := startProxy(t, "proxy", "--config", file)
	waitFor(t, "the proxy to be ready", p.isReady)
	answers := streams(t, p, 4, 250)

	write("workers:\n" + entry(w2))
	waitFor(t, "the other worker", func() error {
		d, err := p.explain(newChat(1, 10, 1).body())
		if err == nil && d.Worker != "w2" {
			err = fmt.Errorf("requests go to %s", d.Worker)
		}
		return err
	})
	for range 4 {
		if a := <-answers; a.outcome != whole || a.worker != "w1" {
			t.Errorf("a stream of the worker that left: %v on %s: %s", a.outcome, a.worker, a.reason)
		}
	}
	warm(t, []*liveWorker{w2}, 1)
	waitFor(t, "the events of the other worker", func() error { return p.knows("complete", w2) })
	settle(t, p, []*liveWorker{w2})
	if _, err := p.feed("w1"); err == nil {
		t.Error("the worker that left is still shown")
	}

	write("workers:\n" + entry(w1) + "wrokers: []\n")
	waitFor(t, "the refusal", func() error { return says(p.process, "reload refused", 1) })
	if !strings.Contains(p.lifeText(), "wrokers") {
		t.Errorf("the refusal does not name the key:\n%s", lastLines(p.lifeText(), 3))
	}
	if d, err := p.explain(newChat(1, 10, 1).body()); err != nil || d.Worker != "w2" {
		t.Errorf("after a wrong file requests go to %q (%v)", d.Worker, err)
	}
	write("workers:\n" + entry(w1) + entry(w2))
	waitFor(t, "both workers", func() error { return p.knows("complete", w1, w2) })
	settle(t, p, []*liveWorker{w1, w2})
}
