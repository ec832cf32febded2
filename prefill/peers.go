package prefill

import (
	"slices"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// Peers is how a Prefiller reaches those of other proxies; see events.Peers. Its functions
// return at once. The zero value reaches nobody.
type Peers struct {
	Changed func()             // Outstanding has changed
	Meet    func(m kv.Meeting) // tells the owner of a warm-up
}

// peering is what is shared with other proxies. Guarded by Prefiller.mu.
type peering struct {
	next uint64
	told []*conversation          // of this proxy, oldest first
	away map[uint64]*conversation // went on at another proxy, which will tell how

	abroad map[string][]kv.WarmUp // by proxy
}

// maxAway bounds the conversations whose end another proxy is to tell.
const maxAway = 4096

// met is a warm-up of another proxy for a turn that came to this one.
type met struct {
	owner string
	id    uint64
}

// shareLocked makes a warm-up known to other proxies, or what has become of it: where it
// goes and what it leaves there.
func (p *Prefiller) shareLocked(j *job, v *verdict) {
	c := j.c
	if p.cfg.Peers.Changed == nil || v.blocks == 0 || c.place == nil {
		return // nobody is to know, or can; or its next turn is here
	}
	tail := v.tail ^ kv.TenantHash(c.scope.model, c.scope.key)
	if c.shared.ID == 0 {
		p.mu.peering.next++
		c.shared.ID = p.mu.peering.next
		told := append(p.mu.peering.told, c)
		p.mu.peering.told = told[max(len(told)-kv.MaxWarmUps, 0):]
	} else if c.shared.Rank == v.worker && c.shared.Tail == tail {
		return
	}
	c.shared.Rank, c.shared.BlockSize, c.shared.Blocks, c.shared.Tail = v.worker, v.blockSize, v.blocks, tail
	p.cfg.Peers.Changed()
}

// unshareLocked forgets a conversation that has gone on, or will not.
func (p *Prefiller) unshareLocked(c *conversation) {
	if c.shared.ID == 0 {
		return
	}
	var was bool
	if p.mu.peering.told, was = without(p.mu.peering.told, c); was {
		p.cfg.Peers.Changed()
	}
}

// Outstanding appends the warm-ups whose next turn is still to come, with those that
// chance held out: other proxies tell what becomes of both.
func (p *Prefiller) Outstanding(dst []kv.WarmUp) []kv.WarmUp {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.mu.peering.told {
		w := c.shared
		w.Sent, w.Done, w.Age = c.warm.gain > 0, c.job == nil, now.Sub(c.ended).Truncate(time.Millisecond)
		dst = append(dst, w)
	}
	return dst
}

// Elsewhere replaces what a peer has told of its warm-ups; nil when it is gone. all is
// handed over.
func (p *Prefiller) Elsewhere(peer string, all []kv.WarmUp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.mu.peering
	p.abroad.Add(int64(len(all) - len(s.abroad[peer])))
	if len(all) == 0 {
		delete(s.abroad, peer)
		return
	}
	s.abroad[peer] = all
}

// meet tells another proxy that the turn has come here, if the prompt starts with what that
// one warms for the same tenant. It costs one load where there is nothing, and hashes
// nothing on a peer's word: blocks of a size that routing had no need of meet nobody.
func (t *Turn) meet(prompt *kv.Prompt) {
	if t.prev != nil || t.met.id != 0 || prompt == nil || t.p.abroad.Load() == 0 {
		return
	}
	p, who := t.p, kv.TenantHash(t.id.model, t.id.key)
	size, chain := 0, []kv.SequenceHash(nil)
	p.mu.Lock()
	for peer, all := range p.mu.peering.abroad {
		for i := range all {
			w := &all[i]
			if w.BlockSize != size {
				size, chain = w.BlockSize, prompt.Hashed(w.BlockSize)
			}
			if len(chain) < w.Blocks || chain[w.Blocks-1]^who != w.Tail {
				continue
			}
			t.met, t.state = met{peer, w.ID}, abroadState(w)
			all[i] = all[len(all)-1] // until the peer says it again, which means that it was not told
			p.mu.peering.abroad[peer] = all[:len(all)-1]
			p.abroad.Add(-1)
			break
		}
		if t.met.id != 0 {
			break
		}
	}
	p.mu.Unlock()
	if t.met.id != 0 {
		p.metrics.meetings.WithLabelValues("told").Inc()
		p.cfg.Peers.Meet(kv.Meeting{Owner: t.met.owner, ID: t.met.id})
	}
}

// abroadState is Turn.State for a turn that another proxy's warm-up was for.
func abroadState(w *kv.WarmUp) string {
	switch {
	case !w.Sent && w.Done:
		return outcomeHoldout
	case w.Done:
		return stateWarmed
	case w.Sent:
		return outcomeCancelled
	}
	return outcomeLate
}

// settleAbroad tells the owner of the warm-up for this turn how the turn went.
func (t *Turn) settleAbroad(e *End) {
	if t.met.id == 0 {
		return
	}
	t.p.cfg.Peers.Meet(kv.Meeting{
		Owner: t.met.owner, ID: t.met.id, Ended: true, OK: e.OK, Rank: e.Worker, Cached: e.Usage.CachedTokens, TTFT: e.TTFT,
	})
	t.met = met{}
}

// Met takes what became of one of this proxy's warm-ups at another proxy. Of what was told
// twice, late, or of something that is over already, nothing comes.
func (p *Prefiller) Met(m kv.Meeting) {
	p.mu.Lock()
	s := &p.mu.peering
	c := s.away[m.ID]
	if c == nil {
		i := slices.IndexFunc(s.told, func(c *conversation) bool { return c.shared.ID == m.ID })
		if i < 0 || s.told[i].place == nil {
			p.mu.Unlock()
			return
		}
		c = s.told[i]
		p.leaveLocked(c)
		if len(s.away) < maxAway {
			s.away[m.ID] = c
		}
		p.metrics.meetings.WithLabelValues("heard").Inc()
	}
	over := m.Ended || s.away[m.ID] == nil
	if over {
		delete(s.away, m.ID)
	}
	j := c.job
	p.mu.Unlock()
	if j != nil {
		p.stop(j, outcomeLate, lateTurn)
	}
	p.recallFor(c)
	if over { // where there was no room to wait for the end, it settles as not known
		p.settle(c, &End{OK: m.Ended && m.OK, Worker: m.Rank, TTFT: m.TTFT, Usage: openai.Usage{CachedTokens: m.Cached}})
	}
}

// sweepAwayLocked closes the conversations of which another proxy never told the end.
func (p *Prefiller) sweepAwayLocked(now time.Time) {
	for id, c := range p.mu.peering.away {
		if now.Sub(c.ended) >= 2*openLife {
			delete(p.mu.peering.away, id)
			p.closeLocked(c, outcomeUnmeasured, blindPeer)
			p.closeTokensLocked(&c.warm, 0, tokenUnknown)
		}
	}
}
