package prefill

import (
	"math"
	"time"
)

// budgetShares is what each trigger may take of the fleet's prefill time: of the seconds that
// clients' requests waited for their first token in the last ten minutes or so, all ranks
// together. That of replicate is no share: it spends what the rent of heads pays for.
var budgetShares = map[Trigger]float64{TriggerJoin: 0.05, TriggerReplicate: math.Inf(1), TriggerRewarm: 0.1}

// budgets are the accounts of the triggers that answer no turn: decayed sums of seconds.
// Guarded by Prefiller.mu.
type budgets struct {
	work  float64 // of clients
	spent map[Trigger]float64
	busy  time.Duration // router.Router.Busy at the last look
	at    time.Time
}

// worked brings the sums up to now; busy is what the router says. A rank that left took
// its part along.
func (b *budgets) worked(now time.Time, busy time.Duration) {
	kept := math.Exp(-max(now.Sub(b.at), 0).Seconds() / workMemory.Seconds())
	b.work = b.work*kept + max(busy-b.busy, 0).Seconds()
	for t := range b.spent {
		b.spent[t] *= kept
	}
	b.at, b.busy = now, busy
}

// spend counts the seconds of a copy.
func (b *budgets) spend(t Trigger, seconds float64) { b.spent[t] += seconds }

// room returns the seconds that a trigger may still spend.
func (b *budgets) room(t Trigger) float64 {
	if math.IsInf(budgetShares[t], 1) {
		return budgetShares[t]
	}
	return budgetShares[t]*b.work - b.spent[t]
}
