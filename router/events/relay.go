package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/kvwire"
)

const (
	announceEvery  = 2 * time.Second
	announcePause  = 50 * time.Millisecond // between two announcements at least
	saveEvery      = 10 * time.Second
	silentAfter    = 10 * time.Second // without an event, the log asks whether they are on
	requestTimeout = 2 * time.Second
)

// RelayConfig describes one engine and where its events go. Zero fields mean defaults.
type RelayConfig struct {
	Worker string // worker id, as proxies know it
	URL    string // base URL of the worker, by which proxies may know it instead
	// RelayID names this relay and stays the same over restarts. Default
	// "<host name>/<worker>". Two relays of one worker have different ids.
	RelayID string
	// Events is the engine's PUB endpoint (tcp://host:5557) of rank 0; rank r is at
	// port + r. Replay is its replay socket, "" for none.
	Events, Replay string
	Topic          string // prefix of the topics to follow
	Ranks          int    // DP ranks of the engine (1)
	Bind           bool   // listen on Events, for engines that dial
	// StateDir keeps the blocks over a restart of the relay; "" does not.
	StateDir string
	// Conn is the NATS connection that the deltas go out on.
	Conn            *nats.Conn
	Prefix, Cluster string // of subjects; "warmroute" and "default"
	Logger          *slog.Logger
	Registerer      prometheus.Registerer // nil counts for nobody
}

// Relay follows the events of one engine and publishes the net changes of its blocks.
type Relay struct {
	cfg      RelayConfig
	subjects subjects
	metrics  *relayMetrics
	streams  []*stream
	sockets  []*socket
	changed  chan struct{} // announce now

	info struct {
		sync.Mutex
		WorkerInfo
	}
}

// NewRelay checks the configuration and reads the state files.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Ranks == 0 {
		cfg.Ranks = 1
	}
	if cfg.RelayID == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "relay"
		}
		cfg.RelayID = host + "/" + cfg.Worker
		cfg.RelayID = cfg.RelayID[:min(len(cfg.RelayID), maxRelayID)]
	}
	switch {
	case cfg.Worker == "" || len(cfg.Worker) > maxWorkerID:
		return nil, fmt.Errorf("worker id %q: 1 to %d bytes are needed", cfg.Worker, maxWorkerID)
	case len(cfg.RelayID) > maxRelayID:
		return nil, fmt.Errorf("relay id %q: at most %d bytes", cfg.RelayID, maxRelayID)
	case cfg.Events == "":
		return nil, fmt.Errorf("worker %s: events endpoint is missing: give tcp://host:5557 of the engine's --kv-events-config", cfg.Worker)
	case cfg.Conn == nil:
		return nil, errors.New("BUG: relay without a NATS connection")
	case cfg.Ranks < 0 || cfg.Ranks > maxRanks:
		return nil, fmt.Errorf("worker %s: ranks is %d; 1 to %d are possible", cfg.Worker, cfg.Ranks, maxRanks)
	}
	r := &Relay{cfg: cfg, metrics: newRelayMetrics(cfg.Registerer), changed: make(chan struct{}, 1)}
	var err error
	if r.subjects, err = newSubjects(cfg.Prefix, cfg.Cluster); err != nil {
		return nil, err
	}
	if cfg.StateDir != "" {
		if err := os.MkdirAll(cfg.StateDir, 0o755); err != nil {
			return nil, fmt.Errorf("state_dir: %w", err)
		}
	}
	for rank := range cfg.Ranks {
		if err := r.addRank(rank); err != nil {
			return nil, fmt.Errorf("worker %s: %w", cfg.Worker, err)
		}
	}
	return r, nil
}

// maxRanks bounds the ranks of one worker; each has a socket and a state.
const maxRanks = 1024

func (r *Relay) addRank(rank int) error {
	s := newStream(&r.cfg, rank, r.cfg.Logger, r.metrics.rank(r.cfg.Worker, rank), r.changed)
	k := &socket{relay: r, rank: rank, log: s.log, streams: map[int]*stream{rank: s}, tagged: -1, first: true}
	sc := kvwire.SubscriberConfig{Topic: r.cfg.Topic, Bind: r.cfg.Bind}
	var err error
	if sc.Endpoint, err = rankEndpoint(r.cfg.Events, rank); err != nil {
		return err
	}
	if sc.Replay, err = rankEndpoint(r.cfg.Replay, rank); err != nil {
		return err
	}
	if r.cfg.StateDir != "" {
		if sc.Resume, err = s.loadState(); err != nil {
			s.log.Warn("state is not restored", "err", err)
		}
	}
	if k.sub, err = kvwire.NewSubscriber(sc); err != nil {
		return err
	}
	r.streams = append(r.streams, s)
	r.sockets = append(r.sockets, k)
	return nil
}

// SetInfo gives what the engine said about itself, for the announcements.
func (r *Relay) SetInfo(info WorkerInfo) {
	r.info.Lock()
	same := reflect.DeepEqual(r.info.WorkerInfo, info)
	r.info.WorkerInfo = info
	r.info.Unlock()
	if same {
		return
	}
	for _, s := range r.streams {
		s.set(func(s *stream) {
			s.mu.engine = info.Engine
			s.mu.tr.expect(info.BlockSize)
		})
	}
	notify(r.changed)
}

func (r *Relay) engine() string {
	r.info.Lock()
	defer r.info.Unlock()
	return r.info.Engine
}

// Addr returns the endpoint that listens for a rank's engine, where Bind is set.
func (r *Relay) Addr(rank int) string { return r.sockets[rank].sub.Addr() }

// Run relays until ctx ends and then says farewell.
func (r *Relay) Run(ctx context.Context) error {
	defer r.metrics.forget(r.cfg.Worker)
	requests := make(chan *nats.Msg, requestQueue)
	sub, err := r.cfg.Conn.Subscribe(r.subjects.states(r.cfg.Worker), func(m *nats.Msg) {
		select {
		case requests <- m:
		default:
			r.streams[0].m.ignored.Inc()
		}
	})
	if err != nil {
		return fmt.Errorf("relay of %s: subscribe: %w", r.cfg.Worker, err)
	}
	defer sub.Unsubscribe()
	r.fitMessages()
	g, ctx := errgroup.WithContext(ctx)
	for i, k := range r.sockets {
		g.Go(func() error { return k.sub.Run(ctx, k) })
		g.Go(func() error {
			r.streams[i].publish(ctx.Done(), r.cfg.Conn.Publish, r.subjects.deltas(r.cfg.Worker, i))
			return nil
		})
	}
	g.Go(func() error { r.serve(ctx, requests); return nil })
	g.Go(func() error { r.announceLoop(ctx); return nil })
	g.Go(func() error { r.saveLoop(ctx); return nil })
	err = g.Wait()
	r.save()
	r.announce(true)
	if r.cfg.Conn.IsConnected() {
		r.cfg.Conn.FlushTimeout(requestTimeout) // best effort: silence tells the same
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// announceLoop announces every 2 s, after a change, and when NATS is back.
func (r *Relay) announceLoop(ctx context.Context) {
	status := r.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer r.cfg.Conn.RemoveStatusListener(status)
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	started := time.Now()
	warned := false
	var changed <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
			changed = r.changed
			continue
		case <-changed:
			changed = nil
			pause.Reset(announcePause)
		case <-status:
			r.fitMessages()
		case <-tick.C:
		}
		r.announce(false)
		if !warned && time.Since(started) > silentAfter {
			warned = true
			r.warnSilent()
		}
	}
}

// fitMessages keeps the messages within what the server allows.
func (r *Relay) fitMessages() {
	limit := int(r.cfg.Conn.MaxPayload())
	if limit <= 0 || limit >= maxMessage {
		limit = maxMessage
	}
	limit = max(limit, 4096)
	for _, s := range r.streams {
		s.set(func(s *stream) {
			if limit < s.limit {
				s.log.Warn("NATS server allows small messages only", "max_payload", limit, "fix", "raise max_payload to 1 MB")
				s.mu.ring = ring{first: s.mu.seq + 1} // what it holds may be too large to replay
				s.mu.snapshot = cachedSnapshot{}
			}
			s.limit = limit
		})
	}
}

func (r *Relay) warnSilent() {
	for _, s := range r.streams {
		s.mu.Lock()
		silent := s.mu.last.Payload == nil && (s.mu.link == "" || !s.mu.connected)
		_, reason := s.coverageLocked()
		s.mu.Unlock()
		if silent && reason != "" {
			s.log.Warn("KV events off?", "reason", reason)
		}
	}
}

func (r *Relay) announce(farewell bool) {
	a := Announcement{V: Version, Worker: r.cfg.Worker, URL: r.cfg.URL, Relay: r.cfg.RelayID, Farewell: farewell}
	r.info.Lock()
	a.Info = r.info.WorkerInfo
	r.info.Unlock()
	for _, s := range r.streams {
		a.Ranks = append(a.Ranks, s.info())
	}
	msg, err := json.Marshal(a)
	if err == nil && len(msg) > maxMessage {
		a.Info.Models = nil // proxies know a configured worker's models themselves
		msg, err = json.Marshal(a)
	}
	if err != nil {
		panic("BUG: announcement: " + err.Error())
	}
	if r.cfg.Conn.Publish(r.subjects.workers(), msg) != nil {
		r.streams[0].m.unpublished.Inc()
	}
}

func (r *Relay) saveLoop(ctx context.Context) {
	if r.cfg.StateDir == "" {
		return
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.save()
		}
	}
}

func (r *Relay) save() {
	if r.cfg.StateDir == "" {
		return
	}
	for _, s := range r.streams {
		if err := s.saveState(); err != nil {
			s.log.Warn("state is not saved", "err", err)
		}
	}
}
