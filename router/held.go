package router

import (
	"sort"

	"github.com/warmroute/warmroute/router/kv"
)

// distinctTokens is the resolution at which shared prefixes of running requests are
// told apart: one reference count per so many tokens of a prompt.
const distinctTokens = 1024

// distinct counts the KV tokens of the prompts in flight on one rank, a prefix that
// several of them share once, as the engine's reference-counted blocks do. Without
// it eight conversations over one system prompt would look like a full cache.
type distinct struct {
	refs   map[kv.SequenceHash]int32
	tokens float64
}

// marks returns how many blocks lie between two counted ones.
func marks(unit float64) int {
	return max(int(distinctTokens/unit), 1)
}

// add counts a prompt of tokens tokens whose blocks are unit tokens each; remove with
// the same arguments undoes it.
func (d *distinct) add(chain []kv.SequenceHash, unit, tokens float64) {
	if d.refs == nil {
		d.refs = map[kv.SequenceHash]int32{}
	}
	step := marks(unit)
	for i := step - 1; i < len(chain); i += step {
		if d.refs[chain[i]]++; d.refs[chain[i]] == 1 {
			d.tokens += float64(step) * unit
		}
		tokens -= float64(step) * unit
	}
	d.tokens += tokens
}

func (d *distinct) remove(chain []kv.SequenceHash, unit, tokens float64) {
	step := marks(unit)
	for i := step - 1; i < len(chain); i += step {
		n := d.refs[chain[i]] - 1
		if n == 0 {
			delete(d.refs, chain[i])
			d.tokens -= float64(step) * unit
		} else {
			d.refs[chain[i]] = n
		}
		tokens -= float64(step) * unit
	}
	d.tokens -= tokens
	if len(d.refs) == 0 && d.tokens < 1e-6 {
		d.tokens = 0 // what is left is rounding
	}
}

// shared returns the tokens of a prompt that requests in flight hold already.
func (d *distinct) shared(chain []kv.SequenceHash, unit float64) float64 {
	if len(d.refs) == 0 || len(chain) == 0 {
		return 0
	}
	step := marks(unit)
	n := sort.Search(len(chain)/step, func(i int) bool { return d.refs[chain[(i+1)*step-1]] == 0 })
	return float64(n*step) * unit
}
