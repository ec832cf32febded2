package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	announceQueue = 1024 // announcements that wait; more are dropped, they repeat
	maxResyncs    = 4    // at once, over all feeds
	maxStrangers  = 256  // unjoined workers, and gone feeds, that are remembered
)

// ConsumerConfig says where events come from and where they go.
type ConsumerConfig struct {
	Local, External *nats.Conn // External may be nil
	Prefix, Cluster string     // of subjects; "warmroute" and "default"
	Index           *index.Set
	Workers         *kv.Workers
	// Resolve joins an announcement to a worker of this proxy, by id, then by URL. A
	// feed that it does not join is reported and not followed.
	Resolve func(a *Announcement) (id string, ok bool)
	// OnFeed is told when the state of a feed changes; OnAnnouncement of every
	// announcement. Either may be nil. They run on the feed's path: be quick.
	OnFeed         func(FeedStatus)
	OnAnnouncement func(a *Announcement, joined bool)
	Logger         *slog.Logger
	Registerer     prometheus.Registerer // nil counts for nobody
	Now            func() time.Time      // nil is time.Now
}

// timing holds the protocol's clocks; tests shorten them.
type timing struct {
	gap      time.Duration // an announced delta may take this long to arrive
	stale    time.Duration // without an announcement
	gone     time.Duration
	chunk    time.Duration // between two chunks of an answer
	check    time.Duration // of bounds that nothing signals
	capacity time.Duration // between two resyncs because of capacity
	distrust time.Duration // after stale hits survived a resync
}

var defaultTiming = timing{
	gap: 200 * time.Millisecond, stale: 6 * time.Second, gone: 15 * time.Second, chunk: 5 * time.Second,
	check: time.Second, capacity: time.Minute, distrust: 10 * time.Minute,
}

// Consumer keeps the index equal to what the relays of this proxy's workers publish.
type Consumer struct {
	cfg      ConsumerConfig
	subjects subjects
	timing   timing
	metrics  *consumerMetrics
	links    []*link
	slots    chan struct{} // one per resync under way

	mu struct {
		sync.Mutex
		feeds     map[kv.WorkerRank]*feed
		gone      map[kv.WorkerRank]FeedStatus
		strangers map[string]FeedStatus
	}
	wg sync.WaitGroup // feeds

	// beforeApply runs before a feed takes its inbox; tests stall a feed with it.
	beforeApply func(kv.WorkerRank)
}

// link is one NATS connection and whether it is up.
type link struct {
	nc *nats.Conn
	up atomic.Bool
}

// NewConsumer checks the configuration.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Index == nil || cfg.Workers == nil || cfg.Resolve == nil || cfg.Local == nil {
		return nil, errors.New("BUG: consumer needs Local, Index, Workers and Resolve")
	}
	c := &Consumer{cfg: cfg, timing: defaultTiming, metrics: newConsumerMetrics(cfg.Registerer), slots: make(chan struct{}, maxResyncs)}
	var err error
	if c.subjects, err = newSubjects(cfg.Prefix, cfg.Cluster); err != nil {
		return nil, err
	}
	for _, nc := range []*nats.Conn{cfg.Local, cfg.External} {
		if nc != nil {
			c.links = append(c.links, &link{nc: nc})
		}
	}
	c.mu.feeds = make(map[kv.WorkerRank]*feed)
	c.mu.gone = make(map[kv.WorkerRank]FeedStatus)
	c.mu.strangers = make(map[string]FeedStatus)
	return c, nil
}

// arrival is an announcement as it came.
type arrival struct {
	link *link
	data []byte
}

// Run follows the announced workers until ctx ends. Then it withdraws what it put into
// the index.
func (c *Consumer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.metrics.connected.Set(0)
	defer c.wg.Wait()
	defer cancel()
	arrivals := make(chan arrival, announceQueue)
	status := make(chan *link, 16)
	for _, l := range c.links {
		// Listening first and looking second misses no change.
		changes := l.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
		defer l.nc.RemoveStatusListener(changes)
		l.up.Store(l.nc.IsConnected())
		c.wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changes:
				}
				select {
				case <-ctx.Done():
					return
				case status <- l:
				}
			}
		})
		sub, err := l.nc.Subscribe(c.subjects.workers(), func(m *nats.Msg) {
			select {
			case arrivals <- arrival{l, m.Data}:
			default:
				c.metrics.announcements.WithLabelValues("dropped").Inc()
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to announcements: %w", err)
		}
		defer sub.Unsubscribe()
	}
	c.noteConnected()
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-arrivals:
			c.announced(ctx, a)
		case l := <-status:
			c.linkChanged(l)
		}
	}
}

// linkChanged tells the feeds that a connection went up or down.
func (c *Consumer) linkChanged(l *link) {
	up := l.nc.IsConnected()
	if l.up.Swap(up) == up && !up {
		return
	}
	c.noteConnected()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.mu.feeds {
		f.q.put(item{link: &up, on: l})
	}
}

func (c *Consumer) noteConnected() {
	setBool(c.metrics.connected, c.links[len(c.links)-1].up.Load())
}

// announced hands an announcement to the feeds of its ranks.
func (c *Consumer) announced(ctx context.Context, in arrival) {
	a := new(Announcement)
	if err := decodeJSON(in.data, a, &a.V); err != nil {
		if errors.Is(err, errVersion) {
			c.metrics.unknownVersion.Inc()
		} else {
			c.metrics.announcements.WithLabelValues("malformed").Inc()
		}
		return
	}
	if a.Worker == "" || len(a.Worker) > maxWorkerID || a.Relay == "" || len(a.Relay) > maxRelayID || len(a.Ranks) > maxRanks {
		c.metrics.announcements.WithLabelValues("malformed").Inc()
		return
	}
	id, ok := c.cfg.Resolve(a)
	outcome := "joined"
	if a.Farewell {
		outcome = "farewell"
	} else if !ok {
		outcome = "unjoined"
	}
	c.metrics.announcements.WithLabelValues(outcome).Inc()
	if ok {
		c.join(ctx, in.link, id, a)
	} else {
		c.refuse(a)
	}
	if c.cfg.OnAnnouncement != nil {
		c.cfg.OnAnnouncement(a, ok)
	}
}

func (c *Consumer) join(ctx context.Context, l *link, id string, a *Announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.strangers, a.Worker)
	for _, r := range a.Ranks {
		if r.Rank < 0 || r.Rank >= maxRanks {
			continue
		}
		rank := kv.WorkerRank{ID: id, Rank: r.Rank}
		f := c.mu.feeds[rank]
		if f == nil {
			if a.Farewell {
				continue
			}
			f = newFeed(c, rank)
			c.mu.feeds[rank] = f
			delete(c.mu.gone, rank)
			c.wg.Go(func() { f.run(ctx) })
		}
		f.q.put(item{heard: &heard{link: l, a: a, rank: r}})
	}
	for rank, f := range c.mu.feeds {
		has := func(r RankInfo) bool { return r.Rank == rank.Rank }
		if rank.ID == id && f.follows(a.Relay) && !slices.ContainsFunc(a.Ranks, has) {
			f.q.put(item{end: true})
		}
	}
}

// refuse remembers a worker that is not ours, and ends its feeds if it was.
func (c *Consumer) refuse(a *Announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rank, f := range c.mu.feeds {
		if !f.follows(a.Relay) {
			continue
		}
		// A stranger that uses the relay's id ends no feed of a worker that is ours.
		if _, ours := c.cfg.Resolve(&Announcement{Worker: rank.ID}); !ours {
			f.q.put(item{end: true})
		}
	}
	if a.Farewell {
		delete(c.mu.strangers, a.Worker)
		return
	}
	if _, known := c.mu.strangers[a.Worker]; !known && len(c.mu.strangers) >= maxStrangers {
		return
	}
	s := FeedStatus{
		Rank: kv.WorkerRank{ID: a.Worker}, State: FeedNone, Relay: a.Relay,
		Reason: fmt.Sprintf("announced by relay %s at %q, but no worker here has that id or URL: configure it, or list its host in allow_announced (--allow-announced)", a.Relay, a.URL),
	}
	c.mu.strangers[a.Worker] = s
}

// Resync fetches the state of a rank anew, because the caller doubts it. The second
// "stale_hits" in ten minutes withdraws the rank's blocks instead: its relay believes
// the same, so asking it again does not help.
func (c *Consumer) Resync(rank kv.WorkerRank, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.mu.feeds[rank]; f != nil {
		f.q.put(item{reason: reason})
	}
}

// Status returns the feeds, those that are gone, and the announced workers that are
// not ours, sorted by worker and rank.
func (c *Consumer) Status() []FeedStatus {
	c.mu.Lock()
	out := make([]FeedStatus, 0, len(c.mu.feeds)+len(c.mu.gone)+len(c.mu.strangers))
	for _, f := range c.mu.feeds {
		out = append(out, f.snapshot())
	}
	for _, s := range c.mu.gone {
		out = append(out, s)
	}
	for _, s := range c.mu.strangers {
		out = append(out, s)
	}
	c.mu.Unlock()
	slices.SortFunc(out, func(a, b FeedStatus) int {
		if n := strings.Compare(a.Rank.ID, b.Rank.ID); n != 0 {
			return n
		}
		return a.Rank.Rank - b.Rank.Rank
	})
	return out
}

// remove takes an ended feed out and keeps its last words.
func (c *Consumer) remove(f *feed, last FeedStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.q.close()
	delete(c.mu.feeds, f.rank)
	if last.State == FeedGone && len(c.mu.gone) < maxStrangers {
		c.mu.gone[f.rank] = last
	}
}
