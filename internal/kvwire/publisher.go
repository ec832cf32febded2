package kvwire

import (
	"context"
	"errors"
	"time"
)

// PublisherConfig says how a simulated engine publishes. Zero fields mean defaults.
type PublisherConfig struct {
	Endpoint       string // tcp://host:port or ipc://path of the PUB socket; port 0 takes a free one
	Connect        bool   // dial Endpoint instead of binding it, as vLLM does without a wildcard
	ReplayEndpoint string // of the ROUTER socket; "" = none
	Topic          string
	TopicFrame     bool // replay answers carry the topic frame (vLLM since 0.26); old form without
	BufferSteps    int  // batches kept for replay; default 10,000
	Queue          int  // batches queued per subscriber before it loses some; default 100,000
}

// Publisher is the engine's side of the wire: PUB and ROUTER sockets, a ring of recent
// batches and switches for the faults of real engines. Safe for concurrent use.
type Publisher struct {
	cfg PublisherConfig
}

// NewPublisher binds the sockets; nothing is served before Run.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) { return &Publisher{cfg: cfg}, nil }

// Run serves subscribers and replays until ctx ends.
func (p *Publisher) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Publish sends one batch and returns its sequence number. The publisher keeps payload.
func (p *Publisher) Publish(payload []byte) (seq uint64) { return 0 }

// Addr and ReplayAddr return the bound endpoints with their real ports.
func (p *Publisher) Addr() string       { return p.cfg.Endpoint }
func (p *Publisher) ReplayAddr() string { return p.cfg.ReplayEndpoint }

// Skip loses the next n batches: they take sequence numbers but are neither sent nor kept.
func (p *Publisher) Skip(n int) {}

// Drop keeps the next n batches for replay but does not send them.
func (p *Publisher) Drop(n int) {}

// Delay holds every batch back for d before it is sent.
func (p *Publisher) Delay(d time.Duration) {}

// Restart does what a new engine process does: connections break, the sequence starts
// at 0 and the ring is empty.
func (p *Publisher) Restart() {}
