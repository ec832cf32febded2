package events

import (
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmroute/warmroute/router/kv"
)

// resync is the fetching of a rank's state, from the first request to the swap.
//
//	waiting ─slot─▶ requested ─chunks─▶ swapped in, buffered deltas follow
//	   ▲               │ nobody there, a chunk is missing, NATS is away
//	   └────retryAt────┘
type resync struct {
	reason  string
	replay  bool // ask for deltas after seq; the index is in the state after seq
	waiting bool // for a slot
	holds   bool // a slot
	retryAt time.Time
	attempt int

	ticket   uint64 // names the request in the items it brings
	sub      *nats.Subscription
	deadline time.Time // for the next chunk
	chunks   [][]byte
	got      int
	id       uint64

	buffered [][]byte // deltas that came meanwhile
	bytes    int
}

// startResync begins to fetch the state. With replay the deltas that are missed are
// enough. One that is under way starts over; its buffered deltas stay.
func (f *feed) startResync(reason string, replay bool) {
	if f.epoch == 0 {
		return // nothing is followed yet
	}
	f.c.metrics.resyncs.WithLabelValues(reasonLabel(reason)).Inc()
	next := &resync{reason: reason, replay: replay && f.based, waiting: true}
	if old := f.resync; old != nil {
		f.cancelRequest()
		next.replay = next.replay && old.replay
		next.buffered, next.bytes = old.buffered, old.bytes
	}
	f.synced, f.gapAt = false, time.Time{}
	f.resync = next
	if !f.link.up.Load() {
		next.waiting = false // linkChanged starts over
	}
}

// request asks the relay. The feed holds a slot.
func (f *feed) request() {
	rs := f.resync
	rs.waiting, rs.holds = false, true
	rs.attempt++
	rs.ticket = newID()
	rs.chunks, rs.got = nil, 0
	q := stateRequest{V: Version, Relay: f.relay, Epoch: formatEpoch(f.epoch)}
	if rs.replay {
		q.From = f.seq + 1
	}
	body, err := json.Marshal(q)
	if err != nil {
		panic("BUG: state request: " + err.Error())
	}
	ticket := rs.ticket
	inbox := f.link.nc.NewInbox()
	rs.sub, err = f.link.nc.Subscribe(inbox, func(m *nats.Msg) {
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			f.q.put(item{absent: true, ticket: ticket})
		} else if len(m.Data) > 0 {
			f.q.put(item{answer: m.Data, ticket: ticket})
		}
	})
	if err == nil {
		err = f.link.nc.PublishRequest(f.state, inbox, body)
	}
	if err != nil {
		f.retry(200 * time.Millisecond)
		return
	}
	rs.deadline = f.c.cfg.Now().Add(f.c.timing.chunk)
}

// cancelRequest gives up the request under way and its slot; the resync stays.
func (f *feed) cancelRequest() {
	rs := f.resync
	if rs == nil {
		return
	}
	if rs.sub != nil {
		rs.sub.Unsubscribe()
		rs.sub = nil
	}
	if rs.holds {
		<-f.c.slots
	}
	rs.holds, rs.waiting = false, false
	rs.ticket, rs.chunks, rs.got = 0, nil, 0
	rs.deadline, rs.retryAt = time.Time{}, time.Time{}
}

// retry asks again after a pause of about d, so that feeds do not ask in step.
func (f *feed) retry(d time.Duration) {
	f.cancelRequest()
	f.resync.retryAt = f.c.cfg.Now().Add(d/2 + rand.N(d))
}

// absent handles that no relay serves the state: it is not connected yet, or gone.
func (f *feed) absent(ticket uint64) {
	if rs := f.resync; rs != nil && rs.ticket == ticket {
		f.retry(min(100*time.Millisecond<<min(rs.attempt, 5), 2*time.Second))
	}
}

// answer takes one chunk.
func (f *feed) answer(ticket uint64, msg []byte) {
	rs := f.resync
	if rs == nil || rs.ticket != ticket {
		return // of a request that was given up
	}
	h, err := f.dec.open(msg)
	if err != nil {
		f.misread(err)
		return
	}
	if string(h.relay) != f.relay {
		return
	}
	if h.kind == kindRefusal {
		f.log.Warn("relay refuses to send its state", "relay", f.relay, "reason", string(f.dec.b))
		f.retry(f.c.timing.chunk)
		return
	}
	c, err := f.dec.chunk()
	if err != nil || h.kind != kindState && h.kind != kindReplay {
		f.misread(err)
		return
	}
	switch {
	case rs.chunks == nil:
		rs.id, rs.chunks = c.id, make([][]byte, c.n)
	case c.id != rs.id || c.n != len(rs.chunks):
		return // of another answer
	}
	if rs.chunks[c.i] == nil {
		rs.chunks[c.i] = msg
		rs.got++
	}
	rs.deadline = f.c.cfg.Now().Add(f.c.timing.chunk)
	if rs.got == len(rs.chunks) {
		f.swap(h)
	}
}

// swap brings the index to the state in the chunks and goes on with the deltas that
// came meanwhile.
func (f *feed) swap(h header) {
	rs := f.resync
	chunks := rs.chunks
	f.cancelRequest()
	ok := false
	if h.kind == kindState {
		ok = f.takeState(h, chunks)
	} else if h.epoch == f.epoch && rs.replay {
		ok = f.takeReplay(chunks)
	}
	if !ok {
		rs.replay = false
		f.retry(200 * time.Millisecond)
		return
	}
	f.resync, f.synced, f.based = nil, true, true
	for _, msg := range rs.buffered {
		if h, err := f.dec.open(msg); err == nil && h.epoch == f.epoch && h.seq <= f.seq {
			continue // the answer includes it
		}
		f.delta(msg)
	}
}

// takeState replaces what the index holds for the worker.
func (f *feed) takeState(h header, chunks [][]byte) bool {
	if h.epoch < f.epoch {
		return false // the numbering has moved on since the request
	}
	f.dec.events, f.dec.starts, f.dec.hashes = f.dec.events[:0], f.dec.starts[:0], f.dec.hashes[:0]
	for _, msg := range chunks {
		_, err := f.dec.open(msg)
		if err == nil {
			_, err = f.dec.chunk()
		}
		if err == nil {
			err = f.dec.moreEvents()
		}
		if err != nil {
			f.misread(err)
			return false
		}
	}
	events := f.dec.finish()
	if !f.distrusted.IsZero() {
		events = nil
	}
	if h.epoch > f.epoch { // the relay or engine has restarted since the request
		f.c.metrics.incarnations.WithLabelValues(f.rank.String()).Inc()
		f.epoch = h.epoch
	}
	f.setBlockSize(h.blockSize)
	f.refused = false
	if f.index != nil {
		f.refuse(f.index.Replace(f.w, events))
	}
	if len(f.dec.hashes) > 1<<16 {
		f.dec = decoder{} // a state is large and rare
	}
	f.seq = h.seq
	return true
}

// takeReplay applies the deltas that were missed.
func (f *feed) takeReplay(chunks [][]byte) bool {
	for _, msg := range chunks {
		var d decoder
		_, err := d.open(msg)
		if err == nil {
			_, err = d.chunk()
		}
		for err == nil {
			var delta []byte
			if delta, err = d.nextReplayed(); err != nil || delta == nil {
				break
			}
			var h header
			if h, err = f.dec.open(delta); err != nil {
				break
			}
			if h.kind != kindDelta || h.epoch != f.epoch || h.seq > f.seq+1 {
				err = errMessage
			} else if h.seq == f.seq+1 {
				err = f.apply(h)
			}
		}
		if err != nil {
			f.misread(err)
			return false
		}
	}
	return true
}

// buffer keeps a delta for after the swap. What it removes is removed at once, so that
// no credit outlives the blocks; what it stores must wait for what was missed.
func (f *feed) buffer(msg []byte) {
	events, err := f.dec.readEvents()
	if err != nil {
		f.misread(err)
		return
	}
	for _, e := range events {
		if e.Kind != kv.EventStored && f.index != nil {
			f.index.Apply(f.w, e)
		}
	}
	rs := f.resync
	if rs.bytes += len(msg) + itemOverhead; rs.bytes > queueBytes {
		f.c.metrics.dropped.WithLabelValues("overflow").Add(float64(len(rs.buffered) + 1))
		rs.buffered, rs.bytes = nil, 0 // the next delta shows the gap
		return
	}
	rs.buffered = append(rs.buffered, msg)
}

// tick does what is due and tells whether the worker is gone.
func (f *feed) tick(now time.Time) (gone bool) {
	if f.relay == "" {
		return now.Sub(f.lastHeard) > f.c.timing.gone
	}
	if !f.link.up.Load() {
		return false
	}
	if now.Sub(f.lastHeard) > f.c.timing.gone {
		return true
	}
	if !f.gapAt.IsZero() && !now.Before(f.gapAt) {
		f.gapAt = time.Time{}
		if f.synced && f.seq < f.gapSeq {
			f.c.metrics.gaps.WithLabelValues(f.rank.String()).Inc()
			f.startResync("tail", true)
		}
	}
	if rs := f.resync; rs != nil {
		switch {
		case !rs.deadline.IsZero() && !now.Before(rs.deadline):
			f.retry(500 * time.Millisecond)
		case !rs.retryAt.IsZero() && !now.Before(rs.retryAt):
			rs.retryAt, rs.waiting = time.Time{}, true
		}
	}
	if !now.Before(f.nextCheck) {
		f.nextCheck = now.Add(f.c.timing.check)
		f.check(now)
	}
	return false
}

// check looks at the bounds that nothing signals.
func (f *feed) check(now time.Time) {
	if f.sub != nil {
		if n, err := f.sub.Dropped(); err == nil && n > f.dropped {
			f.c.metrics.natsDropped.Add(float64(n - f.dropped))
			f.dropped = n
			f.startResync("slow_consumer", true)
		}
	}
	if !f.synced || f.index == nil {
		return
	}
	if !f.distrusted.IsZero() && now.After(f.distrusted) {
		f.distrusted, f.doubtedAt = time.Time{}, time.Time{}
		f.startResync("trust", false)
		return
	}
	if f.refused {
		if s := f.c.cfg.Index.Stats(); s.Bytes < s.MaxBytes/10*9 {
			f.refused = false
			f.startResync("room", false)
			return
		}
	}
	capacity := f.capacity
	held := f.index.Held(f.w)[kv.TierGPU] * f.blockSize
	switch {
	case capacity == 0 || held <= capacity+capacity/10:
		f.over = false
	case now.Sub(f.overSince) > f.c.timing.capacity:
		f.overSince = now
		f.startResync("capacity", false)
	default:
		f.over = true
	}
}

// nextDeadline is when tick has something to do.
func (f *feed) nextDeadline(now time.Time) time.Time {
	next := now.Add(f.c.timing.check)
	if f.link != nil && !f.link.up.Load() {
		return next
	}
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	sooner(f.nextCheck)
	sooner(f.gapAt)
	if f.resync != nil {
		sooner(f.resync.deadline)
		sooner(f.resync.retryAt)
	}
	return next
}

// reasonLabel keeps the label bounded whatever a caller says.
func reasonLabel(reason string) string {
	switch reason {
	case "attach", "epoch", "gap", "tail", "overflow", "reconnect", "slow_consumer", "malformed",
		"room", "capacity", "trust", "stale_hits":
		return reason
	}
	return "other"
}
