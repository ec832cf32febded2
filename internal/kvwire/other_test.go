package kvwire

import (
	"strings"
	"testing"
)

// A process that takes over between a live batch and the replay of a gap before it must
// not have its batches taken for the old one's.
func TestSubscriber_GapIsNotFilledByAnotherProcess(t *testing.T) {
	forms(t, func(t *testing.T, cfg PublisherConfig) {
		old, _ := startPublisher(t, PublisherConfig{Topic: cfg.Topic})
		young, _ := startPublisher(t, cfg)
		_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: old.Addr(), Replay: young.ReplayAddr()})
		subscribed(t, old, 1)
		publish(old, "a b")
		eventually(t, "a and b", func() bool { return r.heard("b") })
		publish(young, "A B C")
		old.Drop(1)
		publish(old, "c d")
		eventually(t, "the young one's", func() bool { return r.heard("C") })
		if l := r.story(); !strings.Contains(l, "a b") || !strings.Contains(l, "down connected A B C") {
			t.Errorf("heard %q", l)
		}
	})
}
