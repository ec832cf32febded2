package upstream

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
)

const (
	feedConnect = 5 * time.Second        // a feed has to be connected
	feedSettle  = 250 * time.Millisecond // … and its subscription to reach the engine, which nothing tells
	feedReplay  = 2 * time.Second        // … its replay socket to answer
	feedEvents  = 3 * time.Second        // … and to tell of a prompt that was computed
)

// feedCheck listens to the KV events of a worker's first rank while the other checks run.
type feedCheck struct {
	endpoint, replay string
	reason           string // why nobody listens; "" where somebody does
	err              error  // of the configuration
	cancel           context.CancelFunc
	done             chan struct{}
	changed          chan struct{} // 1

	mu        sync.Mutex
	connected bool
	last      error // why it is not
	replayed  *kvwire.Replay
	batches   int
	bad       error // of a batch that could not be read
	blockSize int
}

// listen starts to follow the worker's feed; report ends it.
func (w *Worker) listen(ctx context.Context, f *facts) *feedCheck {
	c := &feedCheck{endpoint: w.cfg.Events, replay: w.cfg.Replay, changed: make(chan struct{}, 1)}
	topic := w.cfg.Topic
	if c.endpoint == "" && f.advert != nil {
		c.endpoint, c.reason = f.advert.endpoint(w.base)
		topic = f.advert.Topic
	}
	switch {
	case c.endpoint == "":
		return c
	case strings.Contains(c.endpoint, "*"):
		c.reason = "the engine connects to " + c.endpoint + " itself, which only the proxy can listen on"
		return c
	}
	s, err := kvwire.NewSubscriber(kvwire.SubscriberConfig{Endpoint: c.endpoint, Replay: c.replay, Topic: topic, ReplayTimeout: feedReplay})
	if err != nil {
		c.err = err
		return c
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.done = make(chan struct{})
	go func() { // report waits for it
		defer close(c.done)
		_ = s.Run(ctx, c)
	}()
	return c
}

func (c *feedCheck) note(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Connected implements kvwire.Handler.
func (c *feedCheck) Connected(bool) { c.note(func() { c.connected = true }) }

// Disconnected implements kvwire.Handler.
func (c *feedCheck) Disconnected(err error) { c.note(func() { c.last = err }) }

// Replayed implements kvwire.Handler.
func (c *feedCheck) Replayed(r kvwire.Replay) {
	c.note(func() {
		if c.replayed == nil {
			c.replayed = &r
		}
	})
}

// Message implements kvwire.Handler.
func (c *feedCheck) Message(m kvwire.Message) {
	var d kvwire.Decoder
	var b kvwire.Batch
	err := d.Decode(m.Payload, &b)
	c.note(func() {
		c.batches++
		if err != nil {
			c.bad = err
		}
		for _, e := range b.Events {
			c.blockSize = max(c.blockSize, e.BlockSize)
		}
	})
}

// wait blocks until ok or for at most d, and returns ok.
func (c *feedCheck) wait(ctx context.Context, d time.Duration, ok func() bool) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		c.mu.Lock()
		good := ok()
		c.mu.Unlock()
		if good {
			return true
		}
		select {
		case <-c.changed:
		case <-t.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// ready returns when the engine knows that somebody listens, if it ever will.
func (c *feedCheck) ready(ctx context.Context) {
	if c.done == nil || !c.wait(ctx, feedConnect, func() bool { return c.connected || c.last != nil }) {
		return
	}
	c.wait(ctx, feedSettle, func() bool { return false })
}

// report adds what was found. blocks is how many blocks the engine has just computed.
func (c *feedCheck) report(ctx context.Context, d *Diagnosis, f *facts, blocks int) {
	const check = "KV events"
	fix := eventsFlag[f.engine]
	if c.done == nil {
		switch {
		case c.err != nil:
			d.add(check, CheckFail, "%v", c.err)
		case f.engine == EngineLlamaCPP || f.engine == EngineOpenAI:
			d.add(check, CheckOK, "%s", fix)
		case c.reason != "":
			d.add(check, CheckWarn, "not checked: %s", c.reason)
		default:
			d.add(check, CheckWarn, "not checked, no endpoint is given (--events, --replay) or advertised: %s", fix)
		}
		return
	}
	connected := c.wait(ctx, feedConnect, func() bool { return c.connected })
	// What came live waits behind the replay, also behind one that fails.
	replayed := connected && c.wait(ctx, feedConnect, func() bool { return c.replayed != nil })
	seen := connected && c.wait(ctx, feedEvents, func() bool { return c.batches > 0 || blocks == 0 })
	c.cancel()
	<-c.done
	switch {
	case !connected:
		d.add(check, CheckFail, "%s is not reached (%v): %s", c.endpoint, unreached(c.last), fix)
		return
	case c.bad != nil:
		d.add(check, CheckFail, "%s sends something else than KV events: %v", c.endpoint, c.bad)
	case !seen:
		d.add(check, CheckFail, "%s is connected but tells nothing of a prompt of %d blocks that was just computed (is the topic right?): %s", c.endpoint, blocks, fix)
	case c.batches == 0:
		d.add(check, CheckOK, "%s is connected; no batch came meanwhile", c.endpoint)
	default:
		d.add(check, CheckOK, "%s sends batches that can be read", c.endpoint)
	}
	if c.blockSize > 0 && f.blockSize > 0 && c.blockSize != f.blockSize {
		d.add("block size", CheckWarn, "its KV events have blocks of %d tokens, which count, the engine says %d", c.blockSize, f.blockSize)
	}
	switch {
	case c.replay == "":
		d.add("replay", CheckWarn, "%s", noReplayFlag)
	case !replayed:
		d.add("replay", CheckFail, `%s does not answer: add "replay_endpoint":"tcp://*:5657" to the engine's --kv-events-config`, c.replay)
	case c.replayed.Err != nil:
		d.add("replay", CheckFail, `%v: add "replay_endpoint":"tcp://*:5657" to the engine's --kv-events-config`, c.replayed.Err)
	default:
		d.add("replay", CheckOK, "%s replays what it still has", c.replay)
	}
}

// unreached gives a reason where the socket has none yet.
func unreached(err error) error {
	var dns *net.DNSError
	switch {
	case err == nil:
		return errors.New("nothing answers")
	case errors.As(err, &dns):
		return dns
	}
	return err
}
