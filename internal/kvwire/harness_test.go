package kvwire

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const patience = 10 * time.Second

// eventually polls ok until it holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// noGoroutineLeft checks at the end of the test that all its goroutines are gone.
func noGoroutineLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before })
	})
}

// recorder is a Handler that writes down what it hears.
type recorder struct {
	mu struct {
		sync.Mutex
		log      []string // "connected", "continues", "replayed", "failed", "down", payloads with "?n" for missed ones
		payloads []string
		errs     []error
		replays  []Replay
		last     Message
	}
	block chan struct{} // Message waits for it, if set
}

func (r *recorder) add(s string) { r.mu.log = append(r.mu.log, s) }

func (r *recorder) Connected(continues bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if continues {
		r.add("continues")
	} else {
		r.add("connected")
	}
}

func (r *recorder) Message(m Message) {
	if r.block != nil {
		<-r.block
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := string(m.Payload)
	if m.Missed > 0 {
		s = fmt.Sprintf("%s?%d", s, m.Missed)
	}
	r.add(s)
	r.mu.payloads = append(r.mu.payloads, string(m.Payload))
	r.mu.last = m
}

func (r *recorder) Replayed(x Replay) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.replays = append(r.mu.replays, x)
	switch {
	case !x.Tried:
		r.add("live")
	case x.Err != nil:
		r.add("failed")
	default:
		r.add("replayed")
	}
}

func (r *recorder) Disconnected(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add("down")
	r.mu.errs = append(r.mu.errs, err)
}

func (r *recorder) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.mu.log, " ")
}

// story is the log without the ends of replays, whose place among the batches depends on
// when the publisher was asked.
func (r *recorder) story() string {
	var words []string
	for w := range strings.FieldsSeq(r.log()) {
		if w != "replayed" && w != "failed" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

func (r *recorder) heard(payload string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.mu.payloads, payload)
}

// awaitLog waits until the log, from the last connection on, is want.
func (r *recorder) awaitLog(t testing.TB, want string) {
	t.Helper()
	got := func() string {
		l := r.log()
		if i := strings.LastIndex(l, "down "); i >= 0 {
			l = l[i+len("down "):]
		}
		return l
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); got() != want; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("heard %q, want %q", r.log(), want)
		}
	}
}

// run runs f until the test, or the returned stop, ends it.
func run(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(patience):
			t.Errorf("Run does not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

const local = "tcp://127.0.0.1:0"

func startPublisher(t testing.TB, cfg PublisherConfig) (*Publisher, func()) {
	t.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint = local
	}
	var p *Publisher
	eventually(t, "the port is free", func() (ok bool) { // another program may have it between two publishers
		var err error
		if p, err = NewPublisher(cfg); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
		return err == nil
	})
	return p, run(t, p.Run)
}

func startSubscriber(t testing.TB, cfg SubscriberConfig) (*Subscriber, *recorder, func()) {
	t.Helper()
	if cfg.BackoffMin == 0 {
		cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 20*time.Millisecond
	}
	s, err := NewSubscriber(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	return s, r, run(t, func(ctx context.Context) error { return s.Run(ctx, r) })
}

// subscribed waits until p has n subscribers, from when on none of its batches is lost.
func subscribed(t testing.TB, p *Publisher, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d subscribers", n), func() bool { return p.Stats().Subscribers == n })
}

// publish sends the words, one a batch.
func publish(p *Publisher, words string) {
	for w := range strings.FieldsSeq(words) {
		p.Publish([]byte(w))
	}
}

// cut breaks every connection of p, as a network does: the process goes on.
func cut(p *Publisher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.mu.conns {
		w.close()
	}
	clear(p.mu.subs)
}
