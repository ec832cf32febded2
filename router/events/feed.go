package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// FeedState says what is known of a worker rank's blocks.
type FeedState string

// The states of a feed.
const (
	FeedNone      FeedState = "none"      // nothing is known
	FeedResyncing FeedState = "resyncing" // the last consistent state, minus what was removed since
	FeedPartial   FeedState = "partial"   // blocks may be missing
	FeedComplete  FeedState = "complete"  // every block is known
	FeedStale     FeedState = "stale"     // the relay has been silent for 6 s, or said farewell
	FeedGone      FeedState = "gone"      // silent for 15 s: its blocks are dropped
)

// FeedStatus describes one feed.
type FeedStatus struct {
	Rank      kv.WorkerRank `json:"rank"`
	State     FeedState     `json:"state"`
	Reason    string        `json:"reason,omitempty"` // why it is not complete, and what mends it
	BlockSize int           `json:"block_size,omitempty"`
	Relay     string        `json:"relay,omitempty"`
	Epoch     string        `json:"epoch,omitempty"`
	Seq       uint64        `json:"seq"` // last delta applied
	Lag       time.Duration `json:"lag_ns"`
	Blocks    int           `json:"blocks"` // on the GPU
}

// heard is a rank's part of an announcement.
type heard struct {
	link *link
	a    *Announcement
	rank RankInfo
}

// feed follows one (relay, epoch) of one worker rank. Its fields belong to run.
type feed struct {
	c    *Consumer
	rank kv.WorkerRank
	w    kv.Worker
	q    *queue
	log  *slog.Logger
	dec  decoder

	link    *link
	relay   string
	subject string
	state   string // subject of state requests
	sub     *nats.Subscription
	dropped int // by nats.go from sub, so far

	epoch  uint64  // followed; 0 until one is known
	seq    uint64  // last delta applied
	based  bool    // the index holds the state after seq of epoch, or less
	synced bool    // deltas are applied as they come
	resync *resync // under way; nil when synced

	blockSize int
	index     *index.Exact // of blockSize; nil until it is known

	lastHeard time.Time // announcement of the followed relay, or reconnect
	left      bool      // it said farewell
	coverage  Coverage
	reason    string
	capacity  int // tokens announced
	gapAt     time.Time
	gapSeq    uint64 // announced; to be applied by gapAt

	nextCheck  time.Time
	refused    bool // blocks did not fit into the index
	over       bool // holds more than the engine's capacity after a resync
	overSince  time.Time
	doubtedAt  time.Time // last stale hits
	distrusted time.Time // until then the relay's state is not believed; zero: it is
	lag        time.Duration

	mu struct {
		sync.Mutex
		status FeedStatus
	}
}

func newFeed(c *Consumer, rank kv.WorkerRank) *feed {
	f := &feed{c: c, rank: rank, w: c.cfg.Workers.Hold(rank), q: newQueue(), log: c.cfg.Logger.With("worker", rank.String())}
	f.lastHeard = c.cfg.Now()
	f.mu.status = FeedStatus{Rank: rank}
	f.mu.status.State, f.mu.status.Reason = f.standing(false)
	return f
}

// follows tells whether the feed follows that relay. It may be called by anyone.
func (f *feed) follows(relay string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.status.Relay == relay
}

func (f *feed) snapshot() FeedStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.status
}

// run is the feed's life.
func (f *feed) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var items []item
	gone := false
	for more := true; more; {
		var slot chan<- struct{}
		if f.resync != nil && f.resync.waiting {
			slot = f.c.slots
		}
		select {
		case <-ctx.Done():
			more = false
			continue
		case <-f.q.wake:
			if f.c.beforeApply != nil {
				f.c.beforeApply(f.rank)
			}
			var dropped int
			items, dropped = f.q.take(items[:0])
			if dropped > 0 {
				f.c.metrics.dropped.WithLabelValues("overflow").Add(float64(dropped))
				f.startResync("overflow", false)
			}
			for i := range items {
				more = f.handle(&items[i]) && more
			}
			clear(items)
		case slot <- struct{}{}:
			f.request()
		case <-timer.C:
		}
		now := f.c.cfg.Now()
		if f.tick(now) {
			gone, more = true, false
		}
		f.report(gone)
		timer.Reset(f.nextDeadline(now).Sub(now))
	}
	f.end(gone)
}

// end withdraws everything before the number w may name another rank.
func (f *feed) end(gone bool) {
	f.cancelRequest()
	f.unfollow()
	if f.index != nil {
		f.index.Drop(f.w)
	}
	last := f.snapshot()
	last.Blocks = 0
	if !gone {
		last.State, last.Reason = FeedNone, "the worker is not followed any more"
		if f.c.cfg.OnFeed != nil {
			f.c.cfg.OnFeed(last)
		}
	}
	f.c.metrics.forget(f.rank.String())
	f.c.cfg.Workers.Release(f.w)
	f.c.remove(f, last)
}

// handle takes one item and returns false when the feed ends.
func (f *feed) handle(it *item) bool {
	switch {
	case it.delta != nil:
		f.delta(it.delta)
	case it.answer != nil:
		f.answer(it.ticket, it.answer)
	case it.absent:
		f.absent(it.ticket)
	case it.heard != nil:
		f.announced(it.heard)
	case it.link != nil:
		f.linkChanged(it.on, *it.link)
	case it.reason != "":
		f.doubted(it.reason)
	case it.end:
		return false
	}
	return true
}

// follow begins with a relay: deltas first, then its state, so that none is missed.
func (f *feed) follow(h *heard) {
	f.unfollow()
	f.link, f.relay, f.left = h.link, h.a.Relay, false
	f.subject = f.c.subjects.deltas(h.a.Worker, h.rank.Rank)
	f.state = f.c.subjects.state(h.a.Worker, h.rank.Rank)
	f.leaveEpoch()
	f.lastHeard = f.c.cfg.Now()
	sub, err := f.link.nc.Subscribe(f.subject, func(m *nats.Msg) { f.q.put(item{delta: m.Data}) })
	if err != nil {
		f.log.Warn("cannot subscribe to KV events", "subject", f.subject, "err", err)
		f.relay = "" // the next announcement tries again
		return
	}
	// The callback only moves the message to the feed's own queue, so these bound what
	// waits while this process is starved of CPU.
	sub.SetPendingLimits(1<<16, 4*queueBytes)
	f.sub, f.dropped = sub, 0
	f.log.Info("following KV events", "relay", f.relay, "epoch", h.rank.Epoch)
}

func (f *feed) unfollow() {
	if f.sub != nil {
		f.sub.Unsubscribe()
		f.sub = nil
	}
}

// leaveEpoch forgets where the feed stands; the index keeps what it has.
func (f *feed) leaveEpoch() {
	f.epoch, f.seq, f.based, f.synced = 0, 0, false, false
	f.gapAt = time.Time{}
	f.distrusted, f.doubtedAt = time.Time{}, time.Time{}
	f.cancelRequest()
	f.resync = nil
}

// enterEpoch follows another numbering of the same relay. fresh tells that its state is
// known to be empty at this point.
func (f *feed) enterEpoch(epoch uint64, fresh bool) {
	reason := "attach"
	if f.epoch != 0 {
		reason = "epoch"
		f.c.metrics.incarnations.WithLabelValues(f.rank.String()).Inc()
		f.log.Info("relay or engine has restarted", "relay", f.relay, "epoch", formatEpoch(epoch))
	}
	f.leaveEpoch()
	f.epoch = epoch
	if fresh {
		if f.index != nil {
			f.index.Replace(f.w, nil)
		}
		f.based, f.synced = true, true
		return
	}
	f.startResync(reason, false)
}

// announced takes note of what a relay says about this rank.
func (f *feed) announced(h *heard) {
	now := f.c.cfg.Now()
	mine := f.relay == h.a.Relay && f.link == h.link
	if h.a.Farewell {
		if mine {
			f.left = true
			f.log.Info("relay says farewell", "relay", f.relay)
		}
		return
	}
	epoch, err := strconv.ParseUint(h.rank.Epoch, 16, 64)
	if err != nil || epoch == 0 {
		f.misread(errMessage)
		return
	}
	switch {
	case f.relay == "":
		f.follow(h)
	case mine && epoch >= f.epoch:
		f.left = false
		if f.subject != f.c.subjects.deltas(h.a.Worker, h.rank.Rank) {
			f.follow(h)
		}
	case f.left || f.link.up.Load() && now.Sub(f.lastHeard) > f.c.timing.stale:
		// Another relay, or this one with a clock that was set back.
		f.log.Info("following another relay", "relay", h.a.Relay, "before", f.relay)
		f.follow(h)
	default:
		f.c.metrics.dropped.WithLabelValues("other_relay").Inc()
		return
	}
	if f.relay == "" {
		return
	}
	f.lastHeard = now
	if rs := f.resync; rs != nil && !rs.retryAt.IsZero() {
		rs.retryAt = now // the relay is there
	}
	f.coverage, f.reason, f.capacity = h.rank.Coverage, h.rank.Reason, h.a.Info.CapacityTokens
	switch {
	case epoch != f.epoch:
		f.setBlockSize(h.rank.BlockSize)
		f.enterEpoch(epoch, h.rank.LastSeq == 0)
	case f.synced && h.rank.LastSeq > f.seq && f.gapAt.IsZero():
		f.gapAt, f.gapSeq = now.Add(f.c.timing.gap), h.rank.LastSeq
	}
}

// setBlockSize moves to the index of another block size.
func (f *feed) setBlockSize(n int) {
	if n <= 0 || n == f.blockSize {
		return
	}
	if f.index != nil {
		f.index.Drop(f.w)
	}
	f.blockSize, f.index = n, f.c.cfg.Index.Exact(n)
}

// delta takes one change of the rank.
func (f *feed) delta(msg []byte) {
	h, err := f.dec.open(msg)
	if err != nil || h.kind != kindDelta {
		f.misread(err)
		return
	}
	switch {
	case string(h.relay) != f.relay:
		f.c.metrics.dropped.WithLabelValues("other_relay").Inc()
		return
	case h.epoch == f.epoch:
	case h.epoch < f.epoch:
		f.c.metrics.dropped.WithLabelValues("old_epoch").Inc()
		return
	default:
		f.enterEpoch(h.epoch, h.seq == 1)
	}
	switch {
	case !f.synced:
		f.buffer(msg)
	case h.seq <= f.seq:
		f.c.metrics.dropped.WithLabelValues("duplicate").Inc()
	case h.seq == f.seq+1:
		if err := f.apply(h); err != nil {
			f.misread(err)
			f.startResync("malformed", false)
		}
	default:
		f.c.metrics.gaps.WithLabelValues(f.rank.String()).Inc()
		f.startResync("gap", true)
		f.buffer(msg)
	}
}

// apply brings the index to the delta that is open in f.dec.
func (f *feed) apply(h header) error {
	events, err := f.dec.readEvents()
	if err != nil {
		return err
	}
	f.setBlockSize(h.blockSize)
	refused := 0
	for _, e := range events {
		if f.index != nil {
			refused += f.index.Apply(f.w, e)
		}
		if e.Kind == kv.EventCleared {
			f.distrusted, f.doubtedAt = time.Time{}, time.Time{}
		}
	}
	f.seq = h.seq
	f.refuse(refused)
	f.c.metrics.deltas.Inc()
	if lag := f.c.cfg.Now().Sub(time.Unix(0, h.time)); lag >= 0 {
		f.lag = lag
		f.c.metrics.lag.Observe(lag.Seconds())
	} else {
		f.c.metrics.skewed.Inc() // the relay's clock is ahead of ours
	}
	return nil
}

func (f *feed) refuse(blocks int) {
	if blocks > 0 {
		f.refused = true
		f.c.metrics.refused.Add(float64(blocks))
	}
}

func (f *feed) misread(err error) {
	if errors.Is(err, errVersion) {
		f.c.metrics.unknownVersion.Inc()
	} else {
		f.c.metrics.dropped.WithLabelValues("malformed").Inc()
	}
}

// linkChanged stops the clocks while NATS is away and asks what was missed when it is
// back.
func (f *feed) linkChanged(l *link, up bool) {
	if l != f.link {
		return
	}
	if !up {
		f.cancelRequest()
		return
	}
	f.lastHeard = f.c.cfg.Now()
	f.gapAt = time.Time{}
	if f.relay != "" && f.epoch != 0 {
		f.startResync("reconnect", f.based)
	}
}

// doubted acts on a caller's doubt. A relay that is asked twice gives the same answer
// twice, so the second time its blocks are withdrawn instead.
func (f *feed) doubted(reason string) {
	if f.epoch == 0 {
		return
	}
	now := f.c.cfg.Now()
	if reason == "stale_hits" {
		again := !f.doubtedAt.IsZero() && now.Sub(f.doubtedAt) < f.c.timing.distrust
		f.doubtedAt = now
		if again {
			f.distrusted = now.Add(f.c.timing.distrust)
			f.log.Warn("engine reports fewer cached tokens than its KV events claim: its blocks earn no credit", "for", f.c.timing.distrust)
		}
	}
	f.startResync(reason, false)
}

// report publishes the status and tells the caller what changed.
func (f *feed) report(gone bool) {
	s := FeedStatus{
		Rank: f.rank, BlockSize: f.blockSize, Relay: f.relay, Seq: f.seq, Lag: f.lag,
	}
	if f.epoch != 0 {
		s.Epoch = formatEpoch(f.epoch)
	}
	if f.index != nil {
		s.Blocks = f.index.Held(f.w)[kv.TierGPU]
	}
	s.State, s.Reason = f.standing(gone)
	f.mu.Lock()
	old := f.mu.status
	f.mu.status = s
	f.mu.Unlock()
	f.c.metrics.standing(f.rank.String(), s)
	if old.State != s.State || old.Reason != s.Reason || old.BlockSize != s.BlockSize || old.Epoch != s.Epoch {
		if f.c.cfg.OnFeed != nil {
			f.c.cfg.OnFeed(s)
		}
	}
}

func (f *feed) standing(gone bool) (FeedState, string) {
	now := f.c.cfg.Now()
	switch {
	case gone:
		return FeedGone, fmt.Sprintf("relay %s has been silent for %v: is it running, and does it reach NATS?", f.relay, f.c.timing.gone)
	case f.relay == "" || f.epoch == 0:
		return FeedNone, "no announcement of its relay yet"
	case f.left:
		return FeedStale, "relay " + f.relay + " has stopped"
	case f.link.up.Load() && now.Sub(f.lastHeard) > f.c.timing.stale:
		return FeedStale, fmt.Sprintf("relay %s has been silent for %v: is it running, and does it reach NATS?", f.relay, f.c.timing.stale)
	case f.resync != nil:
		return FeedResyncing, f.resync.reason
	case f.coverage != CoverageComplete:
		return FeedPartial, f.reason
	case !f.distrusted.IsZero():
		return FeedPartial, "the engine reports fewer cached tokens than its KV events claim"
	case f.refused:
		return FeedPartial, "the index is full: raise its bytes"
	case f.over:
		return FeedPartial, "it holds more blocks than the engine's capacity: events were lost, or the capacity is configured too small"
	}
	return FeedComplete, f.reason
}
