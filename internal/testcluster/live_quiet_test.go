package testcluster_test

import (
	"strings"
	"testing"
)

// TestLive_HealthyLifeIsQuiet: where nothing is wrong, no process warns of anything, from
// its start to its end.
func TestLive_HealthyLifeIsQuiet(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	w1 := startWorker(t, "w1", eventsAndReplay, "--speed-up", "10")
	w2 := startWorker(t, "w2", eventsAndReplay, "--speed-up", "10", "--like", "sglang")
	relay := startRelay(t, w1, n)
	p := startProxy(t, "proxy", "--nats", n.url(), "-w", w1.flag(false), "-w", w2.flag(true))
	warm(t, []*liveWorker{w1, w2}, 1)
	waitFor(t, "complete feeds", func() error { return p.knows("complete", w1, w2) })
	c := newChat(1, 300, 10)
	u := newUser()
	for range 3 {
		c.say(20)
		if a := u.turn(t.Context(), p.url, c); a.outcome != whole {
			t.Fatalf("%v: %s", a.outcome, a.reason)
		}
	}
	u.close()
	settle(t, p, []*liveWorker{w1, w2}, c.body())
	for _, q := range []*process{p.process, relay, w1.process, w2.process} {
		if code := q.stop(); code != 0 {
			t.Errorf("%s ended with code %d", q.name, code)
		}
		for line := range strings.Lines(q.lifeText()) {
			if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
				t.Errorf("%s says %s", q.name, line)
			}
		}
	}
}
