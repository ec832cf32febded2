package prefill

import (
	"slices"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	maxPlanted  = 512              // copies whose use is awaited
	plantedLife = 15 * time.Minute // after which a copy that nobody used is wasted
)

// planted are the copies that wait for a request that finds them. Guarded by Prefiller.mu.
type planted struct {
	list []plant // oldest first
	done func(t Trigger, used bool, tokens int)
}

type plant struct {
	trigger Trigger
	worker  kv.WorkerRank
	tail    kv.SequenceHash // of the last whole headBlock
	blocks  int
	live    int // tokens that were there
	gain    int
	at      time.Time
}

func (x *planted) add(c *copying) {
	chain := c.prompt().Chain(headBlock)
	if len(chain) == 0 {
		return
	}
	if len(x.list) >= maxPlanted {
		x.end(0, false)
	}
	x.list = append(x.list, plant{trigger: c.trigger, worker: c.to, tail: chain[len(chain)-1], blocks: len(chain), live: c.live, gain: c.gain, at: time.Now()})
}

func (x *planted) end(i int, used bool) {
	v := x.list[i]
	x.list = slices.Delete(x.list, i, i+1)
	x.done(v.trigger, used, v.gain)
}

// met counts the copies that a finished request found.
func (x *planted) met(e *End) {
	if len(x.list) == 0 || !e.OK || e.Prompt == nil || e.Usage.CachedTokens < 0 {
		return
	}
	for i := len(x.list) - 1; i >= 0; i-- {
		v := &x.list[i]
		if v.worker != e.Worker || e.Usage.CachedTokens < v.live+v.gain/2 {
			continue
		}
		if chain := e.Prompt.Chain(headBlock); v.blocks <= len(chain) && chain[v.blocks-1] == v.tail {
			x.end(i, true)
		}
	}
}

func (x *planted) sweep(now time.Time) {
	for len(x.list) > 0 && now.Sub(x.list[0].at) >= plantedLife {
		x.end(0, false)
	}
}
