package kvwire

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"time"
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
	Digest [32]byte // SHA-256 of the payload
}

// Handler receives the stream. All calls come from one goroutine, in the order
//
//	Connected, Message*, [Replayed], Message* ..., Disconnected, Connected, ...
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
	// It also follows attempts that never connected, once per changed reason.
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
	// endpoint has no wildcard. "*" as the host listens on every address.
	Bind bool
	// Resume is where an earlier run stopped. The first connection continues from it if
	// the replay socket proves that the process is still the same.
	Resume *Position

	ReplayTimeout time.Duration // silence after which a replay has failed; default 5 s
	BackoffMin    time.Duration // first pause between dials; default 100 ms
	BackoffMax    time.Duration // longest pause, each jittered by half; default 5 s
	MaxPayload    int           // largest batch in bytes; default DefaultMaxPayload
	BufferBytes   int           // live batches held while a replay runs; default 32 MiB, then the socket waits
	Logger        *slog.Logger  // nil = silent
}

// Subscriber follows one publisher for as long as Run lasts.
type Subscriber struct {
	cfg SubscriberConfig
}

// NewSubscriber returns a subscriber; it does nothing before Run.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) { return &Subscriber{cfg: cfg}, nil }

// Run delivers the stream to h until ctx ends, dialling again for ever.
func (s *Subscriber) Run(ctx context.Context, h Handler) error { return errors.ErrUnsupported }

// Addr returns the bound endpoint in Bind mode, with the real port.
func (s *Subscriber) Addr() string { return s.cfg.Endpoint }
