package events

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// ringBytes bounds the recent deltas that a relay keeps per rank for replay.
const ringBytes = 8 << 20

// lack says what keeps a rank from being complete, apart from its translator.
type lack int

const (
	lackNothing    lack = iota
	lackEvents          // connected, and the engine has said nothing yet
	lackStart           // its first events were missed
	lackGap             // events in the middle were lost
	lackUnreadable      // a batch could not be read
	lackProof           // a restored state that nothing has confirmed yet
	lackRanks           // batches name ranks that are not configured
)

// stream is the authoritative state of one rank: its blocks, its numbered deltas, and
// how complete they are.
type stream struct {
	cfg  *RelayConfig
	rank int
	log  *slog.Logger
	m    rankMetrics

	limit   int           // bytes of one message
	wake    chan struct{} // there are deltas to publish
	changed chan<- struct{}

	mu struct {
		sync.Mutex
		tr        *Translator
		epoch     uint64
		seq       uint64 // of the last delta
		ring      ring
		sent      uint64 // last delta handed to NATS
		lack      lack
		lost      uint64 // batches lost in this incarnation
		link      string // why the engine is not connected; "" when it is
		connected bool   // it is or has been
		replayErr string // of the last replay; "" where it was answered
		asking    bool   // the replay socket is being asked what came before this connection
		engine    string // its kind, for the flag to name
		feeder    *socket
		last      kvwire.Message // applied last; Payload nil until the first
		resume    *restored      // loaded from state_dir and not confirmed
		dirty     bool           // changed since it was saved
		shared    bool           // several ranks arrive at the feeder: positions are not its own
		told      told
		stats     TranslatorStats
		complete  bool
		snapshot  cachedSnapshot
	}
}

func newStream(cfg *RelayConfig, rank int, log *slog.Logger, m rankMetrics, changed chan<- struct{}) *stream {
	s := &stream{
		cfg: cfg, rank: rank, log: log.With("worker", cfg.Worker, "rank", rank), m: m,
		limit: maxMessage, wake: make(chan struct{}, 1), changed: changed,
	}
	s.mu.tr = NewTranslator(TranslatorConfig{})
	s.mu.lack = lackEvents
	s.mu.link = notYet
	s.newEpochLocked()
	return s
}

// notYet is the link of a socket that has not failed either.
const notYet = "being connected"

// nextEpoch returns an epoch above the last one: the milliseconds since 1970, and 20
// random bits that keep apart two relays which share an id by mistake. Epochs rise, so
// that a message which arrives late cannot bring an old one back.
func nextEpoch(last uint64) uint64 {
	return max(uint64(time.Now().UnixMilli())<<20|rand.Uint64N(1<<20), last+1)
}

func newID() uint64 {
	for {
		if id := rand.Uint64(); id != 0 {
			return id
		}
	}
}

// newEpochLocked starts a numbering whose state before delta 1 is empty.
func (s *stream) newEpochLocked() {
	s.mu.epoch, s.mu.seq, s.mu.sent = nextEpoch(s.mu.epoch), 0, 0
	s.mu.ring = ring{first: 1}
	s.mu.snapshot = cachedSnapshot{}
}

// restartLocked begins another incarnation of the engine. Blocks of the one before
// stay known to the translator, without credit: where nothing could prove that the
// process is another one, its children may.
func (s *stream) restartLocked() {
	s.mu.tr.Restarted()
	s.mu.lack, s.mu.lost, s.mu.replayErr = lackEvents, 0, ""
	s.mu.last = kvwire.Message{}
	s.mu.resume = nil
	s.mu.dirty = true
	if s.mu.seq > 0 {
		s.newEpochLocked()
	}
	s.m.incarnations.Inc()
}

// gapLocked withdraws what lost events may have changed.
func (s *stream) gapLocked(missed uint64, why lack) {
	s.mu.lack = why
	s.mu.lost += missed
	s.m.lost.Add(float64(missed))
	s.emitLocked(s.mu.tr.Lost())
}

// apply takes one batch that follows the last one.
func (s *stream) apply(b *kvwire.Batch, m kvwire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emitLocked(s.mu.tr.Apply(b))
	for i := range b.Events {
		if b.Events[i].Kind == kv.EventCleared {
			s.mu.lack = lackNothing // whatever was missed is gone
		}
	}
	s.mu.last = m
	s.mu.dirty = true
	s.m.batches.Inc()
	s.m.unknown.Add(float64(b.Unknown))
	s.m.malformed.Add(float64(b.Malformed))
	s.noteLocked()
}

// set changes the fields that describe how the stream stands.
func (s *stream) set(change func(s *stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
	s.noteLocked()
}

// noteLocked takes the translator's counters and announces changes that matter at once.
func (s *stream) noteLocked() {
	now := s.mu.tr.Stats()
	s.m.translated(&s.mu.stats, &now)
	if now.SizeMismatch > s.mu.stats.SizeMismatch {
		s.log.Warn("stored event has another block size than the rank", "block_size", s.mu.tr.BlockSize(),
			"other", now.otherSize, "fix", "the size in the engine's events is used; correct the configured one, or the connector's")
	}
	s.mu.stats = now
	coverage, reason := s.coverageLocked()
	if complete := coverage == CoverageComplete; complete != s.mu.complete {
		s.mu.complete = complete
		setBool(s.m.complete, complete)
		if complete {
			s.log.Info("KV events are complete", "block_size", s.mu.tr.BlockSize())
		} else {
			s.log.Warn("KV events are partial", "reason", reason)
		}
	}
	if now := (told{s.mu.epoch, s.mu.lack, s.mu.complete, s.mu.asking, s.mu.link, s.mu.replayErr, s.mu.tr.BlockSize()}); now != s.mu.told {
		s.mu.told = now
		notify(s.changed)
	}
}

// told is what proxies should hear of at once when it changes.
type told struct {
	epoch     uint64
	lack      lack
	complete  bool
	asking    bool
	link      string
	replayErr string
	blockSize int
}

// notify wakes the reader of a channel of capacity 1.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// emitLocked numbers the net events as deltas, each within the size of a message.
func (s *stream) emitLocked(events []kv.Event) {
	limit := s.limit - answerRoom - binary.MaxVarintLen32 // a replay wraps it
	for len(events) > 0 {
		s.mu.seq++
		size := 0
		for i := range events {
			size += eventOverhead + 8*len(events[i].Hashes)
		}
		msg := make([]byte, 0, min(size, limit)+maxRelayID)
		msg = appendHeader(msg, kindDelta, s.cfg.RelayID, s.mu.epoch, s.mu.seq, time.Now().UnixNano(), s.mu.tr.BlockSize())
		msg, events = appendEvents(msg, events, limit-len(msg))
		s.mu.ring.push(msg)
		s.m.deltas.Inc()
	}
	notify(s.wake)
}

// publish hands the deltas to NATS in order until done is closed. It is apart from
// apply so that a slow connection does not hold up the engine's socket.
func (s *stream) publish(done <-chan struct{}, send func(subject string, msg []byte) error, subject string) {
	var batch [][]byte
	for {
		select {
		case <-done:
			return
		case <-s.wake:
		}
		for {
			batch = s.unsent(batch[:0])
			if len(batch) == 0 {
				break
			}
			for _, msg := range batch {
				if err := send(subject, msg); err != nil {
					s.m.unpublished.Inc() // consumers see the gap and ask
				}
			}
		}
	}
}

func (s *stream) unsent(dst [][]byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.mu.ring.first; s.mu.sent+1 < first {
		s.m.unpublished.Add(float64(first - s.mu.sent - 1))
		s.mu.sent = first - 1
	}
	for _, msg := range s.mu.ring.from(s.mu.sent + 1) {
		if dst = append(dst, msg); len(dst) == 64 {
			break
		}
	}
	s.mu.sent += uint64(len(dst))
	return dst
}

// info is the rank's part of an announcement.
func (s *stream) info() RankInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := RankInfo{
		Rank: s.rank, Epoch: formatEpoch(s.mu.epoch), LastSeq: s.mu.seq,
		BlockSize: s.mu.tr.BlockSize(), Blocks: s.mu.tr.Stats().Held[kv.TierGPU],
	}
	r.Coverage, r.Reason = s.coverageLocked()
	return r
}

func (s *stream) coverageLocked() (Coverage, string) {
	if reason := s.reasonLocked(); reason != "" {
		return CoveragePartial, reason
	}
	if s.mu.replayErr != "" { // nothing is missing so far
		return CoverageComplete, "the next lost message will leave a gap: " + s.replayFix()
	}
	return CoverageComplete, ""
}

// replayFix says what is wrong with the replay socket.
func (s *stream) replayFix() string {
	return fmt.Sprintf("the replay socket does not answer (%s): check replay: of the worker and "+
		`"replay_endpoint" in the engine's --kv-events-config`, s.mu.replayErr)
}

// reasonLocked says what keeps the rank from being complete and which flag mends it.
func (s *stream) reasonLocked() string {
	const setReplay = `set "replay_endpoint" in the engine's --kv-events-config and replay: of the worker, or give the relay a state_dir`
	switch {
	case s.mu.link == notYet:
		return s.endpoint() + " is being connected"
	case s.mu.link != "" && s.mu.connected:
		return fmt.Sprintf("%s: the engine's event socket is gone, reconnecting: %s", s.endpoint(), s.mu.link)
	case s.mu.link != "":
		return fmt.Sprintf("%s: %s; KV events off? start the engine with %s", s.endpoint(), s.mu.link, eventsFlag(s.mu.engine))
	}
	switch s.mu.lack {
	case lackEvents:
		if s.mu.asking {
			return "the replay socket is being asked for earlier KV events"
		}
		if s.mu.replayErr != "" {
			return "no KV event yet; " + s.replayFix()
		}
		return "no KV event yet; if the worker has served requests, KV events are off: start the engine with " + eventsFlag(s.mu.engine)
	case lackStart:
		switch {
		case s.cfg.Replay == "":
			return "attached after the engine's first event, without a replay socket: " + setReplay
		case s.mu.replayErr != "":
			return s.replayFix()
		}
		return `the engine's replay buffer no longer holds its first event: raise "buffer_steps" in --kv-events-config, or give the relay a state_dir`
	case lackGap:
		switch {
		case s.cfg.Replay == "":
			return fmt.Sprintf("%d event batches were lost: %s", s.mu.lost, setReplay)
		case s.mu.replayErr != "":
			return fmt.Sprintf("%d event batches were lost: %s", s.mu.lost, s.replayFix())
		}
		return fmt.Sprintf(`%d event batches were lost and the replay socket had them no more: raise "buffer_steps" and "hwm" in --kv-events-config`, s.mu.lost)
	case lackUnreadable:
		return "an event batch could not be read: this engine is newer than warmroute, upgrade it"
	case lackProof:
		return "the state restored from state_dir waits for the engine's next event"
	case lackRanks:
		return "event batches name DP ranks that are not configured: set ranks: of the worker"
	}
	return s.mu.tr.Partial()
}

func (s *stream) endpoint() string {
	e, err := rankEndpoint(s.cfg.Events, s.rank)
	if err != nil {
		return s.cfg.Events
	}
	return e
}

// eventsFlag is the engine flag that turns KV events on.
func eventsFlag(engine string) string {
	if engine == "sglang" {
		return `--kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}' --page-size 64`
	}
	return `--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`
}

// ring keeps the newest deltas, up to ringBytes.
type ring struct {
	msgs  [][]byte
	first uint64 // number of msgs[0], or of the next one when there is none
	bytes int
}

func (r *ring) push(msg []byte) {
	r.msgs = append(r.msgs, msg)
	r.bytes += len(msg)
	for r.bytes > ringBytes && len(r.msgs) > 1 {
		r.bytes -= len(r.msgs[0])
		r.msgs[0] = nil
		r.msgs = r.msgs[1:]
		r.first++
	}
}

// from returns the deltas from number seq on, nil when it is not kept.
func (r *ring) from(seq uint64) [][]byte {
	if seq < r.first || seq-r.first >= uint64(len(r.msgs)) {
		return nil
	}
	return r.msgs[seq-r.first:]
}

// covers tells whether every delta from seq to last is kept.
func (r *ring) covers(seq, last uint64) bool {
	return seq > last || seq >= r.first && last < r.first+uint64(len(r.msgs))
}
