package events

import (
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
)

func TestFeed_FollowsStoresRemovesAndClears(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	early := e.store(tokens(0, 5)) // before anyone listens
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	r.converges(5*time.Second, w1, FeedComplete, truthOf(early))
	e.store(append(tokens(0, 5), tokens(70, 3)...))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.evict(tokens(0, 5), 1)
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.clear()
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	if s := r.status(w1); s.BlockSize != bs || s.Relay != "r1" || s.Seq == 0 || s.Blocks != 0 {
		t.Fatalf("status = %+v", s)
	}
	if r.counter("deltas_total") < 3 || r.counter("connected") != 1 {
		t.Fatalf("deltas %v, connected %v", r.counter("deltas_total"), r.counter("connected"))
	}
}
