package kvwire

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// PublisherConfig says how a simulated engine publishes. Zero fields mean defaults.
type PublisherConfig struct {
	Endpoint       string // tcp://host:port or ipc://path of the PUB socket; port 0 takes a free one
	Connect        bool   // dial Endpoint instead of binding it, as vLLM does without a wildcard
	ReplayEndpoint string // of the ROUTER socket; "" = none
	Topic          string
	TopicFrame     bool // replay answers carry the topic frame (vLLM since 0.26); old form without
	BufferSteps    int  // batches kept for replay; default 10,000
	Queue          int  // batches queued per subscriber before it loses some; default 10,000, and 64 MiB
}

// PublisherStats are a publisher's gauges and counters.
type PublisherStats struct {
	Subscribers int    // connections with a subscription
	Dropped     uint64 // batches that a slow subscriber lost
	Replays     uint64 // replay requests answered
}

// Publisher is the engine's side of the wire: PUB and ROUTER sockets, a ring of recent
// batches and switches for the faults of real engines. Safe for concurrent use.
type Publisher struct {
	cfg              PublisherConfig
	live, replay     net.Listener // nil when dialling; nil without a replay socket
	addr, replayAddr string

	mu struct {
		sync.Mutex
		process    int // counts restarts
		next       uint64
		ring       []Message // the last BufferSteps batches; the oldest is ring[start] once it is full
		start      int
		conns      map[*wire]struct{}
		subs       map[*subscription]struct{}
		skip, drop int
		delay      time.Duration
	}
	dropped, replays atomic.Uint64
}

// subscription is one subscriber's connection.
type subscription struct {
	topics map[string]int // prefixes by count; guarded by Publisher.mu
	queue  *queue
}

const (
	defaultBufferSteps = 10000
	defaultQueue       = 10000
	queueBytes         = 64 << 20
	// maxRequest bounds what a subscriber may send, and maxTopics how many prefixes.
	maxRequest = 4 << 10
	maxTopics  = 1024
	redial     = 100 * time.Millisecond
)

// NewPublisher binds the sockets; nothing is served before Run. A Run whose context has
// ended releases them.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	cfg.BufferSteps = orDefault(cfg.BufferSteps, defaultBufferSteps)
	cfg.Queue = orDefault(cfg.Queue, defaultQueue)
	p := &Publisher{cfg: cfg, addr: cfg.Endpoint}
	p.mu.conns = make(map[*wire]struct{})
	p.mu.subs = make(map[*subscription]struct{})
	var err error
	if cfg.Connect {
		if _, _, err = endpoint(cfg.Endpoint); err != nil {
			return nil, err
		}
	} else if p.live, p.addr, err = listen(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.ReplayEndpoint != "" {
		if p.replay, p.replayAddr, err = listen(cfg.ReplayEndpoint); err != nil {
			if p.live != nil {
				p.live.Close()
			}
			return nil, fmt.Errorf("replay: %w", err)
		}
	}
	return p, nil
}

// Addr and ReplayAddr return the endpoints with their real ports; "" without a replay
// socket. A wildcard host reads 127.0.0.1.
func (p *Publisher) Addr() string       { return p.addr }
func (p *Publisher) ReplayAddr() string { return p.replayAddr }

// Stats returns gauges and counters.
func (p *Publisher) Stats() PublisherStats {
	s := PublisherStats{Dropped: p.dropped.Load(), Replays: p.replays.Load()}
	p.mu.Lock()
	defer p.mu.Unlock()
	for sub := range p.mu.subs {
		if len(sub.topics) > 0 {
			s.Subscribers++
		}
	}
	return s
}

// Publish sends one batch and returns its sequence number. It never waits: a subscriber
// whose queue is full loses the batch, which is counted. The publisher keeps payload.
func (p *Publisher) Publish(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := Message{Seq: p.mu.next, Payload: payload}
	p.mu.next++
	if p.mu.skip > 0 {
		p.mu.skip--
		return m.Seq
	}
	if len(p.mu.ring) < p.cfg.BufferSteps {
		p.mu.ring = append(p.mu.ring, m)
	} else {
		p.mu.ring[p.mu.start] = m
		p.mu.start = (p.mu.start + 1) % len(p.mu.ring)
	}
	if p.mu.drop > 0 {
		p.mu.drop--
		return m.Seq
	}
	out := queued{Message: m}
	if p.mu.delay > 0 {
		out.due = time.Now().Add(p.mu.delay)
	}
	for s := range p.mu.subs {
		if s.wants(p.cfg.Topic) && !s.queue.offer(out) {
			p.dropped.Add(1)
		}
	}
	return m.Seq
}

// wants tells whether the subscription covers topic. The publisher's lock is held.
func (s *subscription) wants(topic string) bool {
	for prefix := range s.topics {
		if strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// Skip loses the next n batches: they take sequence numbers but are neither sent nor kept.
func (p *Publisher) Skip(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.skip += n
}

// Drop keeps the next n batches for replay but does not send them.
func (p *Publisher) Drop(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.drop += n
}

// Delay holds every later batch back for d before it is sent.
func (p *Publisher) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.delay = d
}

// Restart does what a new engine process does: connections break, what was queued is
// lost, the sequence starts at 0 and the ring is empty.
func (p *Publisher) Restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.process++
	p.mu.next, p.mu.ring, p.mu.start = 0, nil, 0
	for w := range p.mu.conns {
		w.close()
	}
	clear(p.mu.subs)
}

// Run serves subscribers and replays until ctx ends; it returns nil then. It is called
// once.
func (p *Publisher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if p.replay != nil {
		wg.Go(func() {
			accept(ctx, p.replay, func(c net.Conn) { wg.Go(func() { p.serve(ctx, c, zmq4.Router) }) })
		})
	}
	if p.live != nil {
		accept(ctx, p.live, func(c net.Conn) { wg.Go(func() { p.serve(ctx, c, zmq4.Pub) }) })
		return nil
	}
	for ctx.Err() == nil {
		if c, err := dial(ctx, p.cfg.Endpoint); err == nil {
			p.serve(ctx, c, zmq4.Pub)
		}
		pause(ctx, redial)
	}
	return nil
}

// serve greets one peer and serves it until the connection ends. The reasons are the
// peer's: it dials again.
func (p *Publisher) serve(ctx context.Context, c net.Conn, typ zmq4.SocketType) {
	p.mu.Lock()
	process := p.mu.process
	p.mu.Unlock()
	w, err := openWire(ctx, c, typ, !p.cfg.Connect || typ == zmq4.Router, maxRequest)
	if err != nil {
		return
	}
	p.mu.Lock()
	same := process == p.mu.process // a restart spares no connection
	if same {
		p.mu.conns[w] = struct{}{}
	}
	p.mu.Unlock()
	switch {
	case !same:
	case typ == zmq4.Router:
		p.serveReplay(w)
	default:
		p.serveLive(ctx, w)
	}
	w.close()
	p.mu.Lock()
	delete(p.mu.conns, w)
	p.mu.Unlock()
}

// serveLive reads subscriptions while another goroutine sends what they cover.
func (p *Publisher) serveLive(ctx context.Context, w *wire) {
	sub := &subscription{topics: make(map[string]int), queue: newQueue(p.cfg.Queue, queueBytes)}
	p.mu.Lock()
	p.mu.subs[sub] = struct{}{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		p.sendLive(ctx, w, sub.queue)
		w.close()
	})
	for {
		frames, err := w.recv()
		if err != nil {
			break
		}
		if len(frames) == 1 && len(frames[0]) > 0 {
			p.subscribe(sub, frames[0][0] == 1, string(frames[0][1:]))
		}
	}
	p.mu.Lock()
	delete(p.mu.subs, sub)
	p.mu.Unlock()
	cancel()
	wg.Wait()
}

func (p *Publisher) subscribe(s *subscription, on bool, prefix string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && (len(s.topics) < maxTopics || s.topics[prefix] > 0):
		s.topics[prefix]++
	case !on && s.topics[prefix] > 1:
		s.topics[prefix]--
	case !on:
		delete(s.topics, prefix)
	}
}

// sendLive sends what is queued, flushing when nothing is left to send at once.
func (p *Publisher) sendLive(ctx context.Context, w *wire, q *queue) {
	topic := []byte(p.cfg.Topic)
	for {
		m, ok, _ := q.take()
		if !ok {
			if w.flush() != nil {
				return
			}
			var err error
			if m, err = q.pop(ctx, 0); err != nil {
				return
			}
		}
		if d := time.Until(m.due); !m.due.IsZero() && d > 0 {
			if w.flush() != nil {
				return
			}
			pause(ctx, d)
		}
		if w.send(topic, binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload) != nil {
			return
		}
	}
}

// serveReplay answers [delimiter, first sequence number] with all later batches that the
// ring still has, and the end marker.
func (p *Publisher) serveReplay(w *wire) {
	for {
		frames, err := w.recv()
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			continue // as vLLM does
		}
		p.replays.Add(1)
		for _, m := range p.since(binary.BigEndian.Uint64(frames[1])) {
			if p.answer(w, p.cfg.Topic, m) != nil {
				return
			}
		}
		if p.answer(w, "", Message{Seq: endOfReplay}) != nil || w.flush() != nil {
			return
		}
	}
}

func (p *Publisher) answer(w *wire, topic string, m Message) error {
	seq := binary.BigEndian.AppendUint64(nil, m.Seq)
	if p.cfg.TopicFrame {
		return w.send(nil, []byte(topic), seq, m.Payload)
	}
	return w.send(nil, seq, m.Payload)
}

// since returns the batches of the ring from seq on.
func (p *Publisher) since(seq uint64) []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Message
	for i := range p.mu.ring {
		if m := p.mu.ring[(p.mu.start+i)%len(p.mu.ring)]; m.Seq >= seq {
			out = append(out, m)
		}
	}
	return out
}
