package prefill

import (
	"container/list"
	"context"
	"math"
	"slices"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
)

const (
	keptShare    = 4                // conversations take at most this part of the bytes that may be held
	maxKept      = 8192             // conversations whose prefix is kept
	keptTail     = 16               // tokens at a prompt's end that open the answer: the next turn may lack them
	looksPerTick = 128              // of conversations whose blocks are looked for, each second …
	lookEvery    = 10 * time.Second // … and of one conversation, the first time after as long
	rewarmLife   = 5 * time.Second  // from the look to the end of a warm-up
	likely       = 0.5              // p(return while the blocks stay), at least
	idleTaus     = 3                // age in τ of the blocks that may go for it
	useful       = 0.3              // share of the warmed tokens that are used, below which it stops
)

// rewarming looks after conversations that wait for their next turn: where their blocks
// are gone, their prefix may be computed again. Guarded by Prefiller.mu.
type rewarming struct {
	byKey map[uint64]*list.Element
	order list.List // *kept, by the time of the next look
	bytes int64
	used  float64 // decayed tokens of warm-ups that a turn used …
	spent float64 // … and of all whose fate is known
	ended int     // warm-ups whose fate is known
}

// kept is what is known of the next turn's prompt: the finished one, up to the user's last
// message. That one ends where templates have dropped all reasoning before.
type kept struct {
	prefix
	c     *conversation
	next  time.Time // of the next look
	tried bool      // once while it waits
	why   string    // why it was not tried at the last look
}

func (w *rewarming) init() {
	w.byKey = map[uint64]*list.Element{}
	w.order.Init()
}

// keepLocked keeps the prefix of a conversation that begins to wait.
func (p *Prefiller) keepLocked(c *conversation, t *Turn, e *End) {
	if !p.cfg.Rewarm || !t.user || e.Prompt == nil || !whollyExact(e.Prompt) {
		return
	}
	n := (len(e.Prompt.Tokens) - keptTail) / headBlock * headBlock
	if n < minHead {
		return
	}
	x := prefix{t.id.model, t.id.ns, e.Prompt.Tokens[:n]}
	w, size := &p.mu.rewarming, x.size()
	if size > p.cfg.HeldBytes/keptShare {
		return
	}
	for w.order.Len() >= maxKept || w.bytes+size > p.cfg.HeldBytes/keptShare {
		oldest := w.order.Front()
		if oldest == nil {
			return
		}
		p.unkeepLocked(oldest.Value.(*kept).c)
	}
	if !p.hold(size) {
		return
	}
	w.bytes += size
	x.tokens = slices.Clone(x.tokens)
	k := &kept{prefix: x, c: c, next: c.ended.Add(lookEvery)}
	w.byKey[c.key] = w.order.PushBack(k)
}

// unkeepLocked lets go of a conversation that is over or has gone on.
func (p *Prefiller) unkeepLocked(c *conversation) {
	w := &p.mu.rewarming
	e := w.byKey[c.key]
	if e == nil || e.Value.(*kept).c != c {
		return
	}
	size := e.Value.(*kept).size()
	delete(w.byKey, c.key)
	w.order.Remove(e)
	w.bytes -= size
	p.held.Add(-size)
}

// settled counts the fate of a warm-up.
func (w *rewarming) settled(used bool, tokens int) {
	w.used *= armKept
	w.spent = w.spent*armKept + float64(tokens)
	if used {
		w.used += float64(tokens)
	}
	w.ended++
}

// closed tells whether warm-ups were seen not to be used.
func (w *rewarming) closed() bool { return w.ended >= proof && w.used < useful*w.spent }

// look goes on with the round over the conversations that wait.
func (p *Prefiller) look(now time.Time) {
	if !p.cfg.Rewarm {
		return
	}
	for range looksPerTick {
		p.mu.Lock()
		w := &p.mu.rewarming
		e := w.order.Front()
		if e == nil || now.Before(e.Value.(*kept).next) {
			p.mu.Unlock()
			return
		}
		k := e.Value.(*kept)
		k.next = now.Add(lookEvery)
		w.order.MoveToBack(e)
		waits := !k.tried && !k.c.overdue
		p.mu.Unlock()
		if waits {
			p.consider(k, now)
		}
	}
}

// consider starts a warm-up of a conversation whose blocks are gone.
func (p *Prefiller) consider(k *kept, now time.Time) {
	ask := router.Request{Model: k.model, Prompt: k.prompt(), MaxTokens: 1, PinRank: -1}
	o, err := p.cfg.Router.Outlook(&ask)
	if err != nil || 2*o.OverlapTokens >= len(k.tokens) {
		return
	}
	gate := func(o *router.Outlook, seconds float64) string { return p.worthwhile(k, now, o, seconds) }
	if reason := gate(&o, float64(len(k.tokens)-o.OverlapTokens)/o.Rate); reason != "" {
		p.mu.Lock()
		again := k.why == reason
		k.why, k.tried = reason, reason == skipLearning // chance decides once
		p.mu.Unlock()
		if !again {
			p.metrics.copies.WithLabelValues(string(TriggerRewarm), copySkipped, reason).Inc()
		}
		return
	}
	p.mu.Lock()
	k.tried = true
	p.mu.Unlock()
	c := &copying{prefix: k.prefix, trigger: TriggerRewarm, to: o.Worker, of: k.c}
	p.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, rewarmLife)
		defer cancel()
		p.copy(ctx, c, gate)
	})
}

// worthwhile is the gate of rewarm: the user is likely to come back while the blocks stay,
// what goes for them is idle for long, and warm-ups before were used.
func (p *Prefiller) worthwhile(k *kept, now time.Time, o *router.Outlook, seconds float64) (reason string) {
	stay := idleTaus * o.AgeScale
	p.mu.Lock()
	gone := k.c.place == nil
	back := p.mu.learn.forecast(k.c.scope, now.Sub(k.c.ended).Seconds(), seconds, stay).Resident
	shut := p.mu.rewarming.closed() && p.mu.rand.Float64() >= 1.0/probeEvery
	p.mu.Unlock()
	switch {
	case o.YoungestEvicted > math.Exp(-idleTaus):
		return skipPressure
	case gone || back < likely:
		return skipReturn
	case back*seconds <= costs(o, back, seconds):
		return skipCost
	case shut:
		return skipLearning
	}
	return spareTime(o, seconds)
}

// lastUser tells whether a request ends with a user's message.
func lastUser(v *openai.Request) bool {
	return len(v.Messages) > 0 && v.Messages[len(v.Messages)-1].Role == "user"
}
