package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/warmroute/warmroute/router/kv"
)

// requestQueue bounds the state requests that wait in a relay. More are dropped and
// counted; consumers ask again.
const requestQueue = 64

// cachedSnapshot is the answer to the last request for the whole state, kept while the
// state is the same: after an outage every consumer asks at once.
type cachedSnapshot struct {
	epoch, seq uint64
	msgs       [][]byte
}

// serve answers state requests, one after the other, until ctx ends.
func (r *Relay) serve(ctx context.Context, requests <-chan *nats.Msg) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-requests:
			rank, err := strconv.Atoi(lastToken(m.Subject))
			if err != nil || rank < 0 || rank >= len(r.streams) {
				continue
			}
			s := r.streams[rank]
			var q stateRequest
			if err := decodeJSON(m.Data, &q, &q.V); err != nil {
				s.m.ignored.Inc()
				if errors.Is(err, errVersion) && m.Reply != "" {
					s.send(r.cfg.Conn, m.Reply, [][]byte{s.refuse(fmt.Sprintf("this relay speaks version %d", Version))})
				}
				continue
			}
			if q.Relay != r.cfg.RelayID || m.Reply == "" {
				continue // for another relay of the same worker
			}
			s.send(r.cfg.Conn, m.Reply, s.answer(q))
		}
	}
}

// flushBytes is how much of an answer is sent before the server has confirmed it, so
// that a large state does not fill the consumer's queue in the server.
const flushBytes = 8 << 20

func (s *stream) send(nc *nats.Conn, subject string, msgs [][]byte) {
	sent := 0
	for _, msg := range msgs {
		if nc.Publish(subject, msg) != nil {
			return // the consumer asks again
		}
		if sent += len(msg); sent > flushBytes {
			sent = 0
			if nc.FlushTimeout(requestTimeout) != nil {
				return
			}
		}
	}
}

// answer returns the messages that bring a consumer up to date: the deltas from
// q.From on where they are kept, else the whole state. It is cut under the lock and
// includes every delta up to the number in its header.
func (s *stream) answer(q stateRequest) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.From > 0 && q.Epoch == formatEpoch(s.mu.epoch) && q.From <= s.mu.seq+1 && s.mu.ring.covers(q.From, s.mu.seq) {
		s.m.replays.Inc()
		return s.replayLocked(s.mu.ring.from(q.From))
	}
	s.m.snapshots.Inc()
	c := &s.mu.snapshot
	if c.msgs == nil || c.epoch != s.mu.epoch || c.seq != s.mu.seq {
		*c = cachedSnapshot{s.mu.epoch, s.mu.seq, s.snapshotLocked(s.mu.tr.Snapshot())}
	}
	return c.msgs
}

// answerRoom is what the header and chunk of an answer take at most.
const answerRoom = 64 + maxRelayID

// chunksLocked puts headers before the bodies of an answer.
func (s *stream) chunksLocked(kind byte, bodies [][]byte) [][]byte {
	if len(bodies) > maxChunks {
		return [][]byte{s.refuseLocked(fmt.Sprintf("the state of %d blocks is larger than %d messages", s.mu.tr.Stats().Blocks, maxChunks))}
	}
	id := newID()
	msgs := make([][]byte, len(bodies))
	for i, body := range bodies {
		msg := make([]byte, 0, len(body)+answerRoom)
		msg = appendHeader(msg, kind, s.cfg.RelayID, s.mu.epoch, s.mu.seq, 0, s.mu.tr.BlockSize())
		msg = appendChunk(msg, chunk{id: id, i: i, n: len(bodies)})
		msgs[i] = append(msg, body...)
	}
	return msgs
}

func (s *stream) snapshotLocked(events []kv.Event) [][]byte {
	var bodies [][]byte
	for {
		var body []byte
		body, events = appendEvents(nil, events, s.limit-answerRoom)
		bodies = append(bodies, body)
		if len(events) == 0 {
			return s.chunksLocked(kindState, bodies)
		}
	}
}

func (s *stream) replayLocked(deltas [][]byte) [][]byte {
	bodies := [][]byte{nil}
	for _, msg := range deltas {
		last := len(bodies) - 1
		if len(bodies[last]) > 0 && len(bodies[last])+len(msg) > s.limit-answerRoom {
			bodies = append(bodies, nil)
			last++
		}
		bodies[last] = appendReplayed(bodies[last], msg)
	}
	return s.chunksLocked(kindReplay, bodies)
}

func (s *stream) refuse(why string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refuseLocked(why)
}

func (s *stream) refuseLocked(why string) []byte {
	msg := appendHeader(nil, kindRefusal, s.cfg.RelayID, s.mu.epoch, s.mu.seq, 0, s.mu.tr.BlockSize())
	return append(msg, why...)
}
