package events

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/warmroute/warmroute/internal/kvwire"
)

// socket follows the engine's publisher of one rank. Its methods are called from one
// goroutine.
type socket struct {
	relay *Relay
	rank  int
	sub   *kvwire.Subscriber
	log   *slog.Logger

	dec   kvwire.Decoder
	batch kvwire.Batch

	first     bool            // no message since a connection that proves nothing
	streams   map[int]*stream // the ranks whose events arrive here
	tagged    int             // the rank that batches name where one is configured; -1 unknown
	connected bool            // the engine has been reached, now or before
	warnedFor string          // the last reason of Disconnected that was logged
}

// Connected implements kvwire.Handler.
func (k *socket) Connected(continues bool) {
	k.log.Info("connected to the engine's KV events", "continues", continues)
	k.connected, k.warnedFor = true, ""
	k.first = !continues
	k.each(func(s *stream) {
		s.mu.link, s.mu.connected = "", true
		s.mu.asking = s.cfg.Replay != ""
		s.connectedLocked(continues)
	})
}

// each calls f, with the lock held, for the streams that k feeds.
func (k *socket) each(f func(s *stream)) {
	for _, s := range k.streams {
		s.set(func(s *stream) {
			if s.mu.feeder == nil || s.mu.feeder == k {
				f(s)
			}
		})
	}
}

// connectedLocked tells the stream that its engine is connected.
func (s *stream) connectedLocked(continues bool) {
	switch {
	case continues && s.mu.resume != nil:
		s.trustLocked()
	case continues:
	case s.mu.resume != nil:
		// The first message tells whether the state goes on.
	case s.mu.last.Payload == nil && s.mu.lack == lackEvents:
		// The first connection of all.
	default:
		s.restartLocked()
	}
}

// Replayed implements kvwire.Handler.
func (k *socket) Replayed(r kvwire.Replay) {
	if !r.Tried {
		return
	}
	k.each(func(s *stream) {
		s.mu.replayErr, s.mu.asking = "", false
		switch {
		case r.Err != nil:
			s.mu.replayErr = r.Err.Error()
		case k.first && r.Messages == 0: // the process has published nothing so far
			if s.mu.resume != nil {
				s.mu.tr.Clear()
				s.mu.resume = nil
			}
			s.mu.lack = lackNothing
		}
	})
	if r.Err != nil {
		k.log.Warn("the replay socket does not answer", "endpoint", k.relay.cfg.Replay, "err", r.Err)
	}
}

// Disconnected implements kvwire.Handler.
func (k *socket) Disconnected(err error) {
	text := "disconnected"
	if err != nil {
		text = err.Error()
	}
	k.each(func(s *stream) { s.mu.link, s.mu.asking = text, false })
	if text == k.warnedFor {
		return
	}
	k.warnedFor = text
	if k.connected { // it does publish: a flag mends nothing
		k.log.Warn("the engine's event socket is gone, reconnecting", "err", text)
		return
	}
	k.log.Warn("KV events off? the engine's event socket is not connected", "err", text,
		"fix", "start the engine with "+eventsFlag(k.relay.engine()))
}

// Message implements kvwire.Handler.
func (k *socket) Message(m kvwire.Message) {
	err := k.dec.Decode(m.Payload, &k.batch)
	if k.first {
		k.first = false
		k.each(func(s *stream) { s.beginLocked(m) })
	} else if m.Missed > 0 {
		k.log.Warn("event batches were lost for good", "batches", m.Missed, "before", m.Seq)
		k.each(func(s *stream) { s.gapLocked(m.Missed, lackGap) })
	}
	if err != nil {
		k.log.Warn("event batch cannot be read", "seq", m.Seq, "bytes", len(m.Payload), "err", err)
		k.each(func(s *stream) {
			s.m.malformed.Inc()
			s.gapLocked(1, lackUnreadable)
		})
		return
	}
	if s := k.streamOf(k.batch.Rank); s != nil {
		s.apply(&k.batch, m)
	}
}

// beginLocked takes the first message after a connection that proves nothing: whether the
// stream is followed from its start, or goes on where a restored state ends.
func (s *stream) beginLocked(m kvwire.Message) {
	if re := s.mu.resume; re != nil {
		switch {
		case m.Seq == re.position.Seq+1:
			s.trustLocked()
			return
		case m.Seq > re.position.Seq:
			s.distrustLocked()
		default: // it counts from 0 again: another process
			s.mu.tr.Clear()
			s.mu.resume = nil
		}
	}
	s.mu.lack = lackNothing
	if m.Missed > 0 {
		s.mu.lack = lackStart
		s.mu.lost = m.Missed
		s.m.lost.Add(float64(m.Missed))
	}
}

// streamOf returns the stream of a batch. A rank in the batch overrides the socket's,
// because some engines publish all ranks on one port. Where one rank is configured the
// name of it means nothing: behind an external load balancer every rank is a worker of
// its own.
func (k *socket) streamOf(rank int) *stream {
	own := k.relay.streams[k.rank]
	if rank < 0 {
		return own
	}
	if len(k.relay.streams) == 1 {
		if k.tagged < 0 {
			k.tagged = rank
		}
		if rank == k.tagged {
			return own
		}
		own.wrongRank(rank)
		return nil
	}
	if rank >= len(k.relay.streams) {
		own.wrongRank(rank)
		return nil
	}
	if s := k.streams[rank]; s != nil && s.feeds(k) {
		return s
	}
	s := k.relay.streams[rank]
	if !s.feeds(k) {
		own.wrongRank(rank) // that rank has a socket of its own
		return nil
	}
	k.streams[rank] = s
	var why lack
	var lost uint64
	own.set(func(own *stream) {
		own.mu.shared = true
		why, lost = own.mu.lack, own.mu.lost
	})
	s.set(func(s *stream) {
		s.mu.shared, s.mu.resume = true, nil
		s.mu.link, s.mu.connected, s.mu.lack, s.mu.lost = "", true, why, lost
	})
	return s
}

// feeds tells whether k feeds the stream; the first to deliver does.
func (s *stream) feeds(k *socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.feeder == nil {
		s.mu.feeder = k
	}
	return s.mu.feeder == k
}

func (s *stream) wrongRank(rank int) {
	s.m.malformed.Inc()
	s.set(func(s *stream) {
		if s.mu.lack != lackRanks {
			s.mu.lack = lackRanks
			s.log.Warn("event batch names a DP rank that is not configured", "rank", rank, "fix", "set ranks: of the worker")
		}
	})
}

// rankEndpoint returns the endpoint of a rank: engines add it to the port.
func rankEndpoint(endpoint string, rank int) (string, error) {
	if rank == 0 || endpoint == "" {
		return endpoint, nil
	}
	addr, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(addr)
	if !ok || err != nil {
		return "", fmt.Errorf("endpoint %q: only tcp://host:port can have several ranks", endpoint)
	}
	p, err := strconv.Atoi(port)
	if err != nil || p+rank > 65535 {
		return "", fmt.Errorf("endpoint %q: port %q plus rank %d is no port", endpoint, port, rank)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(p+rank)), nil
}
