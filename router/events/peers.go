package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	maxPeers     = 64
	peersPending = 8 << 20 // bytes that wait to be read; more are lost

	batchFor    = 5 * time.Millisecond   // bookings gather before they are told
	checkEvery  = 500 * time.Millisecond // silence
	stateEvery  = 2 * time.Second
	silentPeer  = 6 * time.Second
	shareStates = 30 // full states, of one minute, over which the share of traffic is taken
)

// Load is the booked load of this proxy and of its peers, as the router keeps it.
type Load interface {
	// Bookings appends the proxy's bookings that changed since the last call, or all.
	Bookings(dst []kv.Booking, all bool) []kv.Booking
	// Book takes what a peer tells: its changes, or all of its bookings. It returns how
	// many were refused.
	Book(peer string, bookings []kv.Booking, all bool) (refused int)
	// Alone says that no peer can be heard and what share of the traffic is this
	// proxy's; 1 ends that.
	Alone(share float64)
}

// PeersConfig says with whom bookings are exchanged.
type PeersConfig struct {
	Conn            *nats.Conn
	Prefix, Cluster string // of subjects; "warmroute" and "default"
	// Proxy is the id of this proxy, 1–255 bytes: the same after a restart, another in
	// every proxy of the cluster.
	Proxy      string
	Load       Load
	Warmups    Warmups // nil: none are told of or taken
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil counts for nobody
}

// Peers tells the other proxies of the cluster what this one has booked, and its router
// what they have. Lost messages heal with the next full state; nothing waits for any.
type Peers struct {
	cfg         PeersConfig
	subject     string
	all         string
	incarnation uint64
	metrics     *peersMetrics
	wake        chan struct{}
	warmed      chan struct{}
	meetings    chan kv.Meeting
	in          chan *nats.Msg
	link        peerLink
	status      atomic.Pointer[[]PeerStatus]

	// What follows belongs to run.
	seq        uint64
	up, alone  bool
	aloneUntil time.Time // if up
	peers      map[string]*peer
	own        []kv.Booking // memory of the last batch
	read       []kv.Booking // memory of the last message
	decoder    decoder
	share      share
	warned     bool // of a proxy with our id
	ownWarm    []kv.WarmUp
	warmTold   bool // peers know of some
}

// peerLink is what Peers needs of a connection.
type peerLink struct {
	publish func(subject string, data []byte) error
	up      func() bool
	payload func() int64
}

// peer is one other proxy.
type peer struct {
	incarnation, seq uint64
	heard            time.Time
	bookings         int // in its last full state
	lost             uint64

	state struct { // under way
		id       uint64
		next     int
		bookings []kv.Booking
	}
}

// PeerStatus is what is known of another proxy.
type PeerStatus struct {
	Proxy    string  `json:"proxy"`
	Bookings int     `json:"bookings"`      // in its last full state
	Age      float64 `json:"age_seconds"`   // since it was last heard
	Lost     uint64  `json:"lost_messages"` // of this incarnation
}

// NewPeers checks the configuration.
func NewPeers(cfg PeersConfig) (*Peers, error) {
	nc := cfg.Conn
	if nc == nil {
		return nil, errors.New("BUG: peers need a connection")
	}
	return newPeers(cfg, peerLink{nc.Publish, nc.IsConnected, nc.MaxPayload})
}

func newPeers(cfg PeersConfig, link peerLink) (*Peers, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Load == nil || cfg.Proxy == "" || len(cfg.Proxy) > maxProxyID {
		return nil, fmt.Errorf("BUG: peers need a load and an id of 1 to %d bytes", maxProxyID)
	}
	s, err := newSubjects(cfg.Prefix, cfg.Cluster)
	if err != nil {
		return nil, err
	}
	p := &Peers{
		cfg: cfg, subject: s.load(cfg.Proxy), all: s.loads(), incarnation: nextEpoch(0), metrics: newPeersMetrics(cfg.Registerer),
		wake: make(chan struct{}, 1), warmed: make(chan struct{}, 1), meetings: make(chan kv.Meeting, maxMeetings), in: make(chan *nats.Msg), link: link, peers: map[string]*peer{},
	}
	p.status.Store(new([]PeerStatus))
	return p, nil
}

// Wake says that there are bookings to tell. It never waits.
func (p *Peers) Wake() { notify(p.wake) }

// Status returns the peers that are heard, by name.
func (p *Peers) Status() []PeerStatus { return *p.status.Load() }

// Run exchanges bookings until ctx ends; then peers forget this proxy's and its router
// theirs.
func (p *Peers) Run(ctx context.Context) error {
	nc := p.cfg.Conn
	changes := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(changes)
	// The subscription has a goroutine and a bounded queue of its own, so its callback
	// may wait for run.
	sub, err := nc.Subscribe(p.all, func(m *nats.Msg) {
		select {
		case p.in <- m:
		case <-ctx.Done():
		}
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, peersPending)
	}
	if err != nil {
		return fmt.Errorf("subscribe to bookings: %w", err)
	}
	defer sub.Unsubscribe()
	slow := 0
	p.run(ctx, changes, func() {
		if n, err := sub.Dropped(); err == nil && n > slow {
			p.metrics.dropped.WithLabelValues("slow").Add(float64(n - slow))
			slow = n
		}
	})
	return nil
}

// run is the loop of Run; check is called now and then.
func (p *Peers) run(ctx context.Context, changes <-chan nats.Status, check func()) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	batch := time.NewTimer(batchFor)
	batch.Stop()
	defer batch.Stop()
	warm := time.NewTimer(warmBatch)
	warm.Stop()
	defer warm.Stop()
	gathering, warming := false, false
	next := time.Now().Add(stateEvery)
	state := p.linkChanged()
	for {
		if state {
			next = time.Now().Add(stateEvery - checkEvery/2)
			p.sendState()
			p.sendWarmups()
		}
		state = false
		select {
		case <-ctx.Done():
			p.leave()
			return
		case <-changes:
			state = p.linkChanged()
		case m := <-p.in:
			if p.receive(m.Subject, m.Data) {
				next = time.Now() // with the next tick, as anybody may have sent this
			}
		case <-p.wake:
			if !gathering {
				gathering = true
				batch.Reset(batchFor)
			}
		case <-batch.C:
			gathering = false
			p.sendChanges()
		case <-p.warmed:
			if !warming {
				warming = true
				warm.Reset(warmBatch)
			}
		case <-warm.C:
			warming = false
			p.sendWarmups()
		case m := <-p.meetings:
			p.sendMeeting(m)
		case now := <-tick.C:
			check()
			p.silence(now)
			state = !now.Before(next)
		}
	}
}

// linkChanged follows the connection and tells whether it has come up.
func (p *Peers) linkChanged() (came bool) {
	up := p.link.up()
	switch {
	case up && !p.up:
		p.aloneUntil = time.Now().Add(stateEvery)
	case !up && (p.up || !p.alone):
		for id := range p.peers {
			p.forget(id)
		}
		p.alone = true
		p.cfg.Load.Alone(p.share.of())
		p.publishStatus(time.Now())
	}
	came = up && !p.up
	p.up = up
	return came
}

// together ends the time without peers.
func (p *Peers) together() {
	if p.alone {
		p.alone = false
		p.cfg.Load.Alone(1)
	}
}

// silence forgets peers that are not heard any more.
func (p *Peers) silence(now time.Time) {
	if p.up && p.alone && !now.Before(p.aloneUntil) {
		p.together()
	}
	for id, o := range p.peers {
		if now.Sub(o.heard) >= silentPeer {
			p.cfg.Logger.Warn("proxy is silent, its bookings are dropped", "proxy", id)
			p.forget(id)
		}
	}
	p.publishStatus(now)
}

// forget drops a peer and what it has booked.
func (p *Peers) forget(id string) {
	delete(p.peers, id)
	p.cfg.Load.Book(id, nil, true)
	if p.cfg.Warmups != nil {
		p.cfg.Warmups.Elsewhere(id, nil)
	}
}

// leave says farewell: this proxy has nothing booked any more.
func (p *Peers) leave() {
	if p.up {
		p.publishState(nil)
	}
	for id := range p.peers {
		p.forget(id)
	}
	p.publishStatus(time.Now())
}

// publishStatus shows the peers to people.
func (p *Peers) publishStatus(now time.Time) {
	list := make([]PeerStatus, 0, len(p.peers))
	bookings, age := 0, 0.0
	for id, o := range p.peers {
		s := PeerStatus{Proxy: id, Bookings: o.bookings, Age: max(now.Sub(o.heard).Seconds(), 0), Lost: o.lost}
		list = append(list, s)
		bookings += s.Bookings
		age = max(age, s.Age)
	}
	slices.SortFunc(list, func(a, b PeerStatus) int { return strings.Compare(a.Proxy, b.Proxy) })
	p.status.Store(&list)
	p.metrics.proxies.Set(float64(len(list)))
	p.metrics.bookings.Set(float64(bookings))
	p.metrics.age.Set(age)
}

// share measures which part of the traffic is this proxy's, from full states.
type share struct {
	states [shareStates]struct{ own, total int }
	next   int
	peers  int // at the last one
}

func (s *share) add(own, others, peers int) {
	s.states[s.next].own, s.states[s.next].total = own, own+others
	s.next = (s.next + 1) % shareStates
	s.peers = peers
}

// of returns the share; equal shares where nothing was booked.
func (s *share) of() float64 {
	own, total := 0, 0
	for _, v := range s.states {
		own += v.own
		total += v.total
	}
	if total == 0 {
		return 1 / float64(1+s.peers)
	}
	return float64(own) / float64(total)
}
