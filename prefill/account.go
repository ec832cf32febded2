package prefill

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// What becomes of the tokens that warm-ups were sent to compute. tokenSent is the sum of
// the others and of those whose next turn is still to come.
const (
	tokenSent      = "sent"
	tokenUsed      = "used"           // the next turn found them cached
	tokenLeft      = "cancelled_used" // the same, of a warm-up that it cancelled
	tokenCancelled = "cancelled"      // not computed in time, or not found
	tokenWasted    = "wasted"
	tokenFailed    = "failed"
	tokenUnknown   = "unknown" // nobody can tell
)

// sendsLocked counts the tokens of a warm-up that is sent, for the first time or again.
// before is what it was to leave until now.
func (p *Prefiller) sendsLocked(before, w *warmth) {
	open := w.gain
	if before.worker == w.worker {
		w.gain = max(w.gain, before.gain) // the same tokens count once
		open = w.gain - before.gain
	} else if before.gain > 0 {
		p.tokensLocked(tokenWasted, before.gain) // on a worker that it has left
		p.mu.tokensOpen -= before.gain
	}
	p.mu.tokensOpen += open
	p.tokensLocked(tokenSent, open)
}

// closeTokensLocked counts what became of the tokens of a warm-up, once: so many were
// found by the next turn, the rest is of the given kind.
func (p *Prefiller) closeTokensLocked(w *warmth, found int, rest string) {
	if w.gain == 0 || w.counted {
		return
	}
	w.counted = true
	as := tokenUsed
	if rest == tokenCancelled {
		as = tokenLeft
	}
	p.mu.tokensOpen -= w.gain
	p.tokensLocked(as, found)
	p.tokensLocked(rest, w.gain-found)
}

// forgetTokensLocked counts the tokens of a warm-up after which no next turn came.
func (p *Prefiller) forgetTokensLocked(w *warmth) {
	if w.cancelled {
		p.closeTokensLocked(w, 0, tokenCancelled)
		return
	}
	p.closeTokensLocked(w, 0, tokenWasted)
}

func (p *Prefiller) tokensLocked(kind string, n int) {
	if n > 0 {
		p.mu.tokens[kind] += n
		p.metrics.tokens.WithLabelValues(kind).Add(float64(n))
	}
}

// What a forecast says and what comes of it, summed over warm-ups that were sent: where
// both series agree the learning gate knows its users.
const (
	eventReturn   = "return"   // a next turn came
	eventInTime   = "in_time"  // after the warm-up was done
	eventResident = "resident" // and found it
)

func (m *metrics) expect(t Trigger, f *forecast) {
	m.forecasts.WithLabelValues(string(t), eventReturn, "expected").Add(f.Return)
	m.forecasts.WithLabelValues(string(t), eventResident, "expected").Add(f.Resident)
	m.forecasts.WithLabelValues(string(t), eventInTime, "expected").Add(f.InTime)
}

func (m *metrics) seen(t Trigger, event string) {
	m.forecasts.WithLabelValues(string(t), event, "seen").Inc()
}

// savings shows the headline of the holdout.
func savings(p *Prefiller) []prometheus.Collector {
	var out []prometheus.Collector
	add := func(name, help string, of func(*experiment) Interval) {
		for bound, read := range map[string]func(Interval) float64{
			"estimate": func(i Interval) float64 { return i.Value },
			"low":      func(i Interval) float64 { return i.Low },
			"high":     func(i Interval) float64 { return i.High },
		} {
			out = append(out, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Namespace: "warmroute", Subsystem: "prefill", Name: name, Help: help, ConstLabels: prometheus.Labels{"bound": bound},
			}, func() float64 {
				p.mu.Lock()
				defer p.mu.Unlock()
				if i := of(&p.mu.learn.total); i.Known {
					return read(i)
				}
				return math.NaN()
			}))
		}
	}
	add("saved_ttft_seconds", "TTFT that warming saves a next turn: mean of the held-out turns minus that of the warmed, by bound: estimate, low and high of its 95 % interval; NaN until both groups have two turns.", (*experiment).saving)
	add("ttft_ratio", "TTFT of warmed next turns as a share of the held-out ones', geometric means, by bound as above.", (*experiment).ratio)
	return out
}
