package sim

import (
	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// mediumGPU is how both engines name device memory in their events.
const mediumGPU = "GPU"

// eventQueue holds events and the memory of their hash lists.
type eventQueue struct {
	events []kvwire.Event
	hashes []kvwire.EngineHash
}

func (q *eventQueue) add(e kvwire.Event) { q.events = append(q.events, e) }

// list returns room for n hashes that lives as long as the queue's events.
func (q *eventQueue) list(n int) []kvwire.EngineHash {
	if cap(q.hashes)-len(q.hashes) < n {
		q.hashes = make([]kvwire.EngineHash, 0, max(n, 1024))
	}
	l := len(q.hashes)
	q.hashes = q.hashes[:l+n]
	return q.hashes[l : l+n : l+n]
}

// take moves all events of o to the end of q.
func (q *eventQueue) take(o *eventQueue) {
	if len(o.events) == 0 {
		return
	}
	if len(q.events) == 0 {
		*q, *o = *o, *q
		return
	}
	q.events = append(q.events, o.events...)
	clear(o.events)
	o.events, o.hashes = o.events[:0], nil // the lists belong to q's events
}

func (q *eventQueue) reset() {
	clear(q.events)
	q.events, q.hashes = q.events[:0], q.hashes[:0]
}

// Events returns what the engine has to say since the last call, in order, as its
// publisher would send it at the end of a step: full blocks that were stored, blocks
// that were evicted, clears. Blocks that were found in the cache are not announced
// again. The result is valid until the next call.
func (e *Engine) Events() []kvwire.Event {
	e.lent.reset()
	e.lent, e.ready = e.ready, e.lent
	return e.lent.events
}

func (e *Engine) queueRemoved(hashes []kvwire.EngineHash) {
	if e.sglang() {
		l := e.pending.list(len(hashes))
		copy(l, hashes)
		e.pending.add(kvwire.Event{Kind: kv.EventRemoved, Hashes: l, Medium: mediumGPU, Tier: kv.TierGPU})
		return
	}
	for _, h := range hashes {
		l := e.pending.list(1)
		l[0] = h
		e.pending.add(kvwire.Event{Kind: kv.EventRemoved, Hashes: l, Medium: mediumGPU, Tier: kv.TierGPU})
	}
}

// queueStored announces the blocks from to to of s, which have just been stored.
func (e *Engine) queueStored(s *Seq, from, to int) {
	if from >= to {
		return
	}
	if e.cfg.EventPerBlock {
		for i := from; i < to; i++ {
			e.queueRun(s, i, i+1)
		}
		return
	}
	e.queueRun(s, from, to)
}

func (e *Engine) queueRun(s *Seq, from, to int) {
	size := e.cfg.BlockSize
	l := e.pending.list(to - from)
	for i := range l {
		l[i] = e.hash(s.chain[from+i])
	}
	ev := kvwire.Event{
		Kind: kv.EventStored, Hashes: l,
		Tokens: s.slice(from*size, to*size), BlockSize: size,
		Medium: mediumGPU, Tier: kv.TierGPU,
	}
	if from > 0 {
		ev.HasParent, ev.Parent = true, e.hash(s.chain[from-1])
	}
	if e.sglang() {
		ev.Salt = s.Namespace.Salt
	} else {
		ev.SpecKind = "full_attention"
		if from == 0 {
			ev.Salt = s.Namespace.Salt // vLLM names the salt on block 0 only
		}
		if s.Namespace.LoRA != "" {
			ev.LoRAName = s.Namespace.LoRA
			ev.LoRAID, ev.HasLoRAID = e.loraIDs[s.Namespace.LoRA], true
		}
		if len(s.Media) > 0 {
			ev.MM = make([][]uint64, to-from)
			for i := range ev.MM {
				ev.MM[i] = s.mediaIn((from+i)*size, (from+i+1)*size)
			}
		}
	}
	e.pending.add(ev)
}
