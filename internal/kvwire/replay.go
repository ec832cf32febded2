package kvwire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-zeromq/zmq4"
)

// endOfReplay is the sequence number of the message that ends a replay.
const endOfReplay uint64 = math.MaxUint64

// maxRounds bounds how often one replay asks again for what is still missing.
const maxRounds = 64

// errOther is a replay that shows another process than the one followed before.
var errOther = errors.New("another process")

// begin tells h of a new connection and replays what came before it. The publisher is
// the same process only if the last batch that we have is in its replay, byte for byte:
// the wire has no other sign. Live messages wait in their queue meanwhile.
func (s *Subscriber) begin(ctx context.Context, h Handler) {
	s.nextReplay, s.answers = time.Time{}, false
	if s.cfg.Replay == "" {
		s.forget()
		h.Connected(false)
		h.Replayed(Replay{})
		return
	}
	if s.known {
		r, same := s.replay(ctx, h, true)
		if same {
			s.replayed(h, r)
			return
		}
		s.forget()
		if !errors.Is(r.Err, errOther) {
			h.Connected(false)
			s.replayed(h, r)
			return
		}
	}
	s.forget()
	h.Connected(false)
	r, _ := s.replay(ctx, h, false)
	s.replayed(h, r)
}

// fill replays what is missing before sequence number seq.
// It fails if another process answers.
func (s *Subscriber) fill(ctx context.Context, h Handler, seq uint64) error {
	r, _ := s.replay(ctx, h, false)
	s.replayed(h, r)
	if r.Err == nil && s.next < seq {
		s.nextReplay = time.Now().Add(unfilledPause)
	}
	return other(r.Err)
}

// probe looks for batches at the end of the stream that never came live, lost to a
// subscription that the publisher had not seen yet or to its high-water mark: without a
// later batch no gap shows them.
// It fails if another process answers.
func (s *Subscriber) probe(ctx context.Context, h Handler) error {
	r, _ := s.replay(ctx, h, false)
	if r.Err != nil || r.Messages > 0 {
		s.replayed(h, r)
	}
	return other(r.Err)
}

// other returns err if it says that another process answered: then the live connection
// is to one that has died, or will be seen to.
func other(err error) error {
	if errors.Is(err, errOther) {
		return err
	}
	return nil
}

// replayed tells h of a replay. After one that failed, gaps pass unfilled for a while:
// each attempt holds up the stream.
func (s *Subscriber) replayed(h Handler, r Replay) {
	if s.answers = r.Err == nil; !s.answers {
		s.nextReplay = time.Now().Add(failedPause)
	}
	h.Replayed(r)
}

// replay asks the replay socket for all batches from s.next on and delivers them. With
// verify it asks for the last one too, which must come first: then h is told that the
// stream continues and same is true. Otherwise it fails before h hears anything, with
// errOther where the publisher showed that it is another process.
//
// A publisher's ROUTER drops silently what exceeds its high-water mark, the end marker
// included: libzmq's default is 1,000 messages, vLLM's ring 10,000. So a round that ends
// in silence or has a hole is followed by another from the hole on, on a connection of
// its own, where nothing of the last round can arrive late. What a round begins with is
// the oldest that the publisher has: a hole before it is real.
func (s *Subscriber) replay(ctx context.Context, h Handler, verify bool) (r Replay, same bool) {
	r = Replay{Tried: true, From: s.next}
	if verify {
		r.From = s.last.Seq
	}
	for round := range maxRounds {
		before, asked, from := s.next, verify, s.next
		if s.known {
			from = s.last.Seq
		}
		done, err := s.round(ctx, h, &r, from, &verify, round == maxRounds-1)
		if asked && !verify {
			same = true
		}
		if done {
			return r, same
		}
		if s.next == before && asked == verify {
			r.Err = err
			break
		}
	}
	if r.Err == nil {
		r.Err = fmt.Errorf("replay socket %s: incomplete after %d requests", s.cfg.Replay, maxRounds)
	}
	return r, same
}

// round makes one request and delivers up to the first hole; with lenient, holes are
// taken as real. done tells that all was received. It clears verify when the last batch
// has proved to be the publisher's. Without verify the request begins with the last batch
// all the same, because the process may have been replaced since the round before: other
// bytes in its place are another process. A ring that no longer has it proves nothing.
func (s *Subscriber) round(ctx context.Context, h Handler, r *Replay, from uint64, verify *bool, lenient bool) (done bool, err error) {
	w, err := s.dialReplay(ctx, from)
	if err != nil {
		return false, err
	}
	q, stop := s.receive(ctx, w)
	defer stop()

	first, hole, check := true, false, s.known
	for {
		in, err := q.pop(ctx, s.cfg.ReplayTimeout)
		if err != nil {
			return false, s.replayError(err, r)
		}
		m := in.Message
		m.Replayed = true
		switch {
		case *verify:
			if m.Seq == endOfReplay || !s.isLast(m) {
				return false, errOther
			}
			*verify, first, check = false, false, false
			s.payload = m.Payload
			h.Connected(true)
		case check && m.Seq <= s.last.Seq && !s.isLast(m):
			return false, errOther
		case check && m.Seq == s.last.Seq:
			check = false // what follows is what the round begins with
		case m.Seq == endOfReplay:
			return !hole, nil
		case m.Seq < s.next:
			s.duplicates.Add(1)
		case m.Seq == s.next || first || lenient:
			first, check = false, false
			s.deliver(h, m)
			r.Messages++
		default:
			hole = true
		}
	}
}

// dialReplay connects to the replay socket and asks for from. An engine that has just
// bound its first socket may not have bound this one yet.
func (s *Subscriber) dialReplay(ctx context.Context, from uint64) (*wire, error) {
	deadline := time.Now().Add(s.cfg.ReplayTimeout)
	for {
		w, err := s.ask(ctx, from)
		if err == nil {
			return w, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("replay socket: %w: is replay_endpoint set in --kv-events-config?", err)
		}
		pause(ctx, min(s.cfg.BackoffMin, time.Until(deadline)+time.Millisecond))
	}
}

func (s *Subscriber) ask(ctx context.Context, from uint64) (*wire, error) {
	c, err := dial(ctx, s.cfg.Replay)
	if err != nil {
		return nil, err
	}
	w, err := openWire(ctx, c, zmq4.Dealer, false, s.cfg.MaxPayload)
	if err != nil {
		return nil, err
	}
	if err = w.send(nil, binary.BigEndian.AppendUint64(nil, from)); err == nil {
		err = w.flush()
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (s *Subscriber) replayError(err error, r *Replay) error {
	if errors.Is(err, errIdle) {
		return fmt.Errorf("replay socket %s: no answer within %s after %d batches: is it the replay_endpoint of --kv-events-config?", s.cfg.Replay, s.cfg.ReplayTimeout, r.Messages)
	}
	return fmt.Errorf("replay socket %s: after %d batches: %w", s.cfg.Replay, r.Messages, err)
}
