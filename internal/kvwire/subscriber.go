package kvwire

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Message is one batch as it travels: its sequence number and its payload.
type Message struct {
	Seq      uint64
	Payload  []byte // never written again; the handler may keep it
	Replayed bool   // came through the replay socket
	// Missed is the number of batches lost for good just before this one: a jump of the
	// sequence that no replay filled. For the first message of a publisher it is Seq,
	// because publishers count from 0.
	Missed uint64
}

// Position returns where the stream stands after m, to be kept and given to Resume.
func (m Message) Position() Position {
	return Position{Seq: m.Seq, Digest: sha256.Sum256(m.Payload)}
}

// Position names one batch of one publisher process: another process has other bytes
// at the same sequence number.
type Position struct {
	Seq    uint64
	Digest [sha256.Size]byte // SHA-256 of the payload
}

// Handler receives the stream. All calls come from one goroutine, in the order
//
//	Connected, Message*, Replayed, (Message | Replayed)*, Disconnected, Connected, ...
//
// and the stream waits for each to return.
type Handler interface {
	// Connected tells that a publisher is connected. With continues it is the process of
	// the messages before (or of Resume): nothing is repeated and the next Message
	// follows the last one. Otherwise it is a new incarnation, or nothing proves that it
	// is not, and what it held before is void.
	Connected(continues bool)
	// Message delivers the next batch; sequence numbers only rise until Disconnected.
	Message(Message)
	// Replayed tells how a replay ended. It comes once after Connected (the stream is
	// live from here) and again after each replay that a gap caused.
	Replayed(Replay)
	// Disconnected tells that the publisher is gone; the subscriber is dialling again.
	// It also follows attempts that never connected, once per changed reason. The end
	// of Run is not told.
	Disconnected(err error)
}

// Replay is the result of asking the replay socket.
type Replay struct {
	Tried    bool   // false: no replay socket is configured
	Err      error  // nil: everything that the publisher still had was received
	From     uint64 // first sequence number asked for
	Messages int    // batches delivered
}

// SubscriberConfig says where one engine rank publishes. Zero fields mean defaults.
type SubscriberConfig struct {
	Endpoint string // tcp://host:port or ipc://path of the PUB socket
	Replay   string // of the ROUTER socket; "" = the engine has none
	Topic    string // prefix of topics to receive; "" = all
	// Bind listens on Endpoint instead of dialling: engines dial when their own
	// endpoint has no wildcard. "*" as the host listens on every address. One publisher
	// is served at a time, a second one waits.
	Bind bool
	// Resume is where an earlier run stopped. The first connection continues from it if
	// the replay socket proves that the process is still the same.
	Resume *Position

	ReplayTimeout time.Duration // silence after which a replay has failed; default 5 s
	BackoffMin    time.Duration // first pause between dials; default 100 ms
	BackoffMax    time.Duration // longest pause, each jittered by half; default 5 s
	MaxPayload    int           // largest batch in bytes; default DefaultMaxPayload
	BufferBytes   int           // batches held while the handler is busy; default 32 MiB, then the socket waits
}

// SubscriberStats are counters since the start of Run.
type SubscriberStats struct {
	Connections uint64 // publishers greeted
	Messages    uint64 // delivered, replayed ones included
	Replayed    uint64
	Duplicates  uint64 // received again and dropped
	Missed      uint64 // lost for good
	Malformed   uint64 // messages whose frames are none of the known forms
}

// Subscriber follows one publisher for as long as Run lasts. It owns its reconnects
// and its replays: the handler sees each batch of a process at most once, in order.
type Subscriber struct {
	cfg      SubscriberConfig
	listener net.Listener
	addr     string

	// Of the stream delivered so far; Run's goroutine only.
	known   bool     // there is a last batch
	next    uint64   // sequence number to follow
	payload []byte   // of the last batch, nil where only its digest is known
	last    Position // of the last batch; Digest is filled where payload is nil

	answers    bool      // the replay socket of this connection does
	nextReplay time.Time // no gap is replayed before

	connections, messages, replays, duplicates, missed, malformed atomic.Uint64
}

const (
	defaultReplayTimeout = 5 * time.Second
	defaultBackoffMin    = 100 * time.Millisecond
	defaultBackoffMax    = 5 * time.Second
	defaultBufferBytes   = 32 << 20

	// maxBuffered bounds the count of buffered batches, which is otherwise theirs of
	// bytes, against floods of empty ones.
	maxBuffered = 1 << 18
	// A gap that a replay could not fill is asked for again at most this often.
	unfilledPause = time.Second
	failedPause   = 30 * time.Second

	// Silence after which the end of the stream is looked for in the replay: soon after
	// connecting, when the publisher may not have seen the subscription yet, later after
	// live batches, then twice as long each time.
	firstProbe = 500 * time.Millisecond
	liveProbe  = 5 * time.Second
	lastProbe  = time.Minute
)

// errRestarted is a publisher that counts anew behind a connection that stands.
var errRestarted = errors.New("the publisher's sequence starts again")

// NewSubscriber checks cfg, and binds the socket in Bind mode; nothing is received
// before Run. A Run whose context has ended releases the socket.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	if _, _, err := endpoint(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.Replay != "" {
		if _, _, err := endpoint(cfg.Replay); err != nil {
			return nil, fmt.Errorf("replay: %w", err)
		}
	}
	cfg.ReplayTimeout = orDefault(cfg.ReplayTimeout, defaultReplayTimeout)
	cfg.BackoffMin = orDefault(cfg.BackoffMin, defaultBackoffMin)
	cfg.BackoffMax = max(orDefault(cfg.BackoffMax, defaultBackoffMax), cfg.BackoffMin)
	cfg.MaxPayload = orDefault(cfg.MaxPayload, DefaultMaxPayload)
	cfg.BufferBytes = orDefault(cfg.BufferBytes, defaultBufferBytes)
	s := &Subscriber{cfg: cfg, addr: cfg.Endpoint}
	if r := cfg.Resume; r != nil {
		s.known, s.next, s.last = true, r.Seq+1, *r
	}
	if cfg.Bind {
		var err error
		if s.listener, s.addr, err = listen(cfg.Endpoint); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Addr returns the endpoint, in Bind mode with the real port.
func (s *Subscriber) Addr() string { return s.addr }

// Stats returns the counters. It may be called at any time.
func (s *Subscriber) Stats() SubscriberStats {
	return SubscriberStats{
		Connections: s.connections.Load(), Messages: s.messages.Load(), Replayed: s.replays.Load(),
		Duplicates: s.duplicates.Load(), Missed: s.missed.Load(), Malformed: s.malformed.Load(),
	}
}

// Run delivers the stream to h until ctx ends, dialling again for ever; it returns nil
// then. It is called once.
func (s *Subscriber) Run(ctx context.Context, h Handler) error {
	if s.listener != nil {
		defer s.listener.Close()
		defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	}
	backoff := s.cfg.BackoffMin
	var reason string
	for ctx.Err() == nil {
		before, start := s.messages.Load(), time.Now()
		w, err := s.connect(ctx)
		connected := err == nil
		if connected {
			s.connections.Add(1)
			err = s.session(ctx, w, h)
		}
		if ctx.Err() != nil {
			break
		}
		if connected || err.Error() != reason {
			reason = err.Error()
			h.Disconnected(err)
		}
		if s.messages.Load() > before || connected && time.Since(start) > s.cfg.BackoffMax {
			backoff = s.cfg.BackoffMin
		}
		pause(ctx, backoff/2+rand.N(backoff/2+1))
		backoff = min(2*backoff, s.cfg.BackoffMax)
	}
	return nil
}

// connect returns a wire to the publisher, subscribed.
func (s *Subscriber) connect(ctx context.Context) (*wire, error) {
	var c net.Conn
	var err error
	if s.listener != nil {
		if c, err = s.listener.Accept(); err != nil {
			return nil, fmt.Errorf("accept on %s: %w", s.addr, err)
		}
	} else if c, err = dial(ctx, s.cfg.Endpoint); err != nil {
		return nil, err
	}
	w, err := openWire(ctx, c, zmq4.Sub, s.listener != nil, s.cfg.MaxPayload)
	if err != nil {
		return nil, err
	}
	const subscribe = 1
	if err = w.send(append([]byte{subscribe}, s.cfg.Topic...)); err == nil {
		err = w.flush()
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("subscribe at %s: %w", s.addr, err)
	}
	return w, nil
}

// receive reads w into a queue until w ends. stop closes w and waits for the reader.
func (s *Subscriber) receive(ctx context.Context, w *wire) (q *queue, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	q = newQueue(maxBuffered, s.cfg.BufferBytes)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			frames, err := w.recv()
			if err == nil {
				m, ok := parse(frames)
				if !ok {
					s.malformed.Add(1)
					continue
				}
				err = q.push(ctx, m)
			}
			if err != nil {
				q.close(err)
				return
			}
		}
	})
	return q, func() {
		cancel()
		w.close()
		wg.Wait()
	}
}

// parse reads the frames of a live or replayed message: [delimiter,] [topic,] sequence,
// payload. The last two are the same in all forms.
func parse(frames [][]byte) (m Message, ok bool) {
	n := len(frames)
	if n < 2 || n > 4 || len(frames[n-2]) != 8 {
		return Message{}, false
	}
	return Message{Seq: binary.BigEndian.Uint64(frames[n-2]), Payload: frames[n-1]}, true
}

// session follows one connection until it breaks.
func (s *Subscriber) session(ctx context.Context, w *wire, h Handler) error {
	q, stop := s.receive(ctx, w)
	defer stop()

	s.begin(ctx, h)
	var live Message // the last one that came live
	heard := false
	silence := firstProbe
	for {
		wait := time.Duration(0)
		if s.answers {
			wait = silence
		}
		in, err := q.pop(ctx, wait)
		if errors.Is(err, errIdle) {
			silence = min(2*silence, lastProbe)
			if err := s.probe(ctx, h); err != nil {
				return fmt.Errorf("publisher %s: %w", s.addr, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("publisher %s: %w", s.addr, err)
		}
		m := in.Message
		if heard && m.Seq == live.Seq && bytes.Equal(m.Payload, live.Payload) {
			s.duplicates.Add(1)
			continue
		}
		// Behind a forwarder the connection outlives the process.
		if heard && m.Seq <= live.Seq || s.known && m.Seq == s.last.Seq && !s.isLast(m) {
			h.Disconnected(fmt.Errorf("publisher %s: %w at %d", s.addr, errRestarted, m.Seq))
			s.begin(ctx, h)
		}
		live, heard, silence = m, true, liveProbe
		if m.Seq > s.next && s.cfg.Replay != "" && !time.Now().Before(s.nextReplay) {
			if err := s.fill(ctx, h, m.Seq); err != nil {
				return fmt.Errorf("publisher %s: %w", s.addr, err)
			}
		}
		if m.Seq < s.next {
			s.duplicates.Add(1)
			continue
		}
		s.deliver(h, m)
	}
}

// deliver hands m, which follows the last batch or leaves a gap, to h.
func (s *Subscriber) deliver(h Handler, m Message) {
	m.Missed = m.Seq - s.next
	s.known, s.next, s.payload, s.last.Seq = true, m.Seq+1, m.Payload, m.Seq
	s.messages.Add(1)
	s.missed.Add(m.Missed)
	if m.Replayed {
		s.replays.Add(1)
	}
	h.Message(m)
}

// forget makes the next message the first of a new incarnation.
func (s *Subscriber) forget() {
	s.known, s.next, s.payload, s.last = false, 0, nil, Position{}
}

// isLast tells whether m is the last batch that was delivered, or Resume.
func (s *Subscriber) isLast(m Message) bool {
	if m.Seq != s.last.Seq {
		return false
	}
	if s.payload != nil {
		return bytes.Equal(m.Payload, s.payload)
	}
	return sha256.Sum256(m.Payload) == s.last.Digest
}
