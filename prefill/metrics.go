package prefill

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// The outcomes of a turn that was a candidate for warming.
const (
	outcomeUsed       = "used"       // the next turn found more cached than it would have
	outcomeLate       = "late"       // the next turn came before the warm-up was sent
	outcomeCancelled  = "cancelled"  // the next turn came while it was under way
	outcomeWasted     = "wasted"     // no next turn, or one that did not profit
	outcomeUnmeasured = "unmeasured" // nobody can tell
	outcomeFailed     = "failed"
	outcomeSkipped    = "skipped"
	outcomeHoldout    = "holdout"
)

// The reasons of outcomeSkipped.
const (
	skipShape      = "shape"       // a reply that cannot be echoed, or more than one
	skipFinish     = "finish"      // it ended in another way than stop or tool_calls
	skipIncomplete = "incomplete"  // the answer failed, or the client left before its end
	skipBytes      = "bytes"       // too large, or no room under the cap
	skipQueue      = "queue"       // dropped for a newer one
	skipSuperseded = "superseded"  // the same turn ended again
	skipWorker     = "no_worker"   // nobody can take it
	skipGeneric    = "generic"     // mode auto, and the worker is not known to hold a cache
	skipGain       = "no_gain"     // the worker holds the next prompt's start anyway
	skipCost       = "cost"        // expected loss of others exceeds the expected gain
	skipLoad       = "load"        // clients' requests keep the worker busy
	skipBudget     = "budget"      // warming has had its share of the worker's idle time
	skipRetryAfter = "retry_after" // the worker asked for a pause
	skipLearning   = "learning"    // measured not to pay
	skipShutdown   = "shutdown"
	skipPressure   = "pressure"  // of a copy: what would go for it was used not long ago
	skipReturn     = "return"    // of a copy: its user may not come back in time
	skipTokens     = "no_tokens" // of a copy: the prompt's token ids are not known
	skipRefused    = "refused"   // of a copy: the worker refused one not long ago
)

// lateTurn is the reason of outcomeLate, and of outcomeCancelled besides some of the above.
const lateTurn = "next_turn"

// The reasons of outcomeWasted and outcomeUnmeasured.
const (
	wasteNoReturn = "no_return" // no next turn came in 15 minutes
	wasteEvicted  = "evicted"   // the prompt matched, but the blocks were gone
	wasteMismatch = "mismatch"  // the next prompt did not start with what was warmed
	wasteCut      = "cut_short" // it gave way and never went on
	wasteMoved    = "moved"     // the next turn ran elsewhere
	wasteReplaced = "replaced"  // the same turn ended again, or the conversation was forgotten
	blindUsage    = "no_usage"  // the engine reports no cached tokens
	blindFailed   = "failed"    // the next turn failed
	blindPeer     = "peer"      // another proxy has it, and never told how it went
)

type metrics struct {
	turns     *prometheus.CounterVec
	outcomes  *prometheus.CounterVec
	sent      *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	seconds   prometheus.Histogram
	ttft      *prometheus.HistogramVec
	gaps      *prometheus.HistogramVec
	forecasts *prometheus.CounterVec
	meetings  *prometheus.CounterVec
	forgotten prometheus.Counter
	yields    prometheus.Counter
	inflight  prometheus.Gauge

	prefixes *prometheus.CounterVec
	forms    *prometheus.CounterVec
	habits   prometheus.Counter // forgotten

	copies     *prometheus.CounterVec
	copyTokens *prometheus.CounterVec
	copyUse    *prometheus.CounterVec
	joins      prometheus.Histogram
}

func newMetrics(p *Prefiller, reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "warmroute", Subsystem: "prefill", Name: name, Help: help}
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "warmroute", Subsystem: "prefill", Name: name, Help: help}, f)
	}
	m := &metrics{
		turns: prometheus.NewCounterVec(counter("turns_total",
			"Finished turns that were candidates for warming, by trigger: turn, tools or none."), []string{"trigger"}),
		outcomes: prometheus.NewCounterVec(counter("outcomes_total",
			"What became of those turns: used, late, cancelled, wasted, unmeasured, failed, skipped or holdout, and why."), []string{"outcome", "reason"}),
		sent: prometheus.NewCounterVec(counter("sent_total",
			"Warm-ups sent to workers, by trigger."), []string{"trigger"}),
		tokens: prometheus.NewCounterVec(counter("tokens_total",
			"Tokens of warm-ups: sent (to be computed), and what became of them: used (reported cached by the next turn beyond what was there), cancelled_used (the same, of warm-ups that it cancelled), cancelled, wasted, failed, unknown; sent is the sum of the others and of warmroute_prefill_open_tokens."), []string{"kind"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "warmroute", Subsystem: "prefill", Name: "duration_seconds",
			Help: "Time from sending a warm-up to its answer.", Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "warmroute", Subsystem: "prefill", Name: "next_turn_ttft_seconds",
			Help:    "Time to first token of next turns, by whether chance had their warm-up sent (warmed) or held out (holdout).",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}, []string{"group"}),
		gaps: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "warmroute", Subsystem: "prefill", Name: "return_gap_seconds",
			Help:    "From the end of a turn to the arrival of the next one, by trigger.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}}, []string{"trigger"}),
		forecasts: prometheus.NewCounterVec(counter("forecast_total",
			"Of warm-ups sent: those after which a next turn was expected (sum of probabilities) and seen, by event: return, in_time (after the warm-up was done) or resident (and found it)."), []string{"trigger", "event", "kind"}),
		meetings: prometheus.NewCounterVec(counter("meetings_total",
			"Turns that came to another proxy than the one that warms them: told (they came here) or heard (they came there)."), []string{"role"}),
		forgotten: prometheus.NewCounter(counter("conversations_forgotten_total",
			"Open conversations dropped for room before their next turn.")),
		yields: prometheus.NewCounter(counter("yields_total",
			"Times a warm-up under way was cancelled to give way to another request; it goes on later.")),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "warmroute", Subsystem: "prefill", Name: "inflight",
			Help: "Warm-ups sent and not yet answered."}),
		prefixes: prometheus.NewCounterVec(counter("prefix_total",
			"Next turns whose prompt started with what was warmed for them (result true), or did not, by where it first differs: system, history, reply, reasoning, tool, next, cut, or blocks where only whole blocks were compared."), []string{"result", "where"}),
		forms: prometheus.NewCounterVec(counter("form_total",
			"Requests of warm-ups by form: tokens (ids of the common prefix), chat (with a stub), refused (ids that the worker did not take; a chat follows)."), []string{"form"}),
		habits: prometheus.NewCounter(counter("habits_forgotten_total",
			"Tenants dropped for room of whose clients it was known how they write replies back.")),
		copies: prometheus.NewCounterVec(counter("copies_total",
			"Warm-ups of join, replicate and rewarm by outcome: warmed, cancelled, failed or skipped, and why."), []string{"trigger", "outcome", "reason"}),
		copyTokens: prometheus.NewCounterVec(counter("copy_tokens_total",
			"Tokens that warm-ups of join, replicate and rewarm were sent to compute."), []string{"trigger"}),
		copyUse: prometheus.NewCounterVec(counter("copy_used_tokens_total",
			"Tokens of those that were warmed, by what became of them: used by a later request, or wasted: not within 15 minutes."), []string{"trigger", "outcome"}),
		joins: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "warmroute", Subsystem: "prefill", Name: "join_seconds",
			Help: "Time from a worker's being healthy to its taking requests, where it was warmed first.", Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 15}}),
	}
	if reg != nil {
		reg.MustRegister(savings(p)...)
		reg.MustRegister(m.turns, m.outcomes, m.sent, m.tokens, m.seconds, m.ttft, m.gaps, m.forecasts, m.meetings, m.forgotten, m.yields, m.inflight,
			m.prefixes, m.forms, m.habits, m.copies, m.copyTokens, m.copyUse, m.joins,
			gauge("conversations", "Finished turns that wait for their next one.", func() float64 { n, _ := p.sizes(); return float64(n) }),
			gauge("open_tokens", "Tokens of warm-ups whose next turn is still to come.", func() float64 {
				p.mu.Lock()
				defer p.mu.Unlock()
				return float64(p.mu.tokensOpen)
			}),
			gauge("peers_warm_ups", "Warm-ups of other proxies whose next turn may come here.", func() float64 { return float64(p.abroad.Load()) }),
			gauge("queue", "Warm-ups that wait or are under way.", func() float64 { _, n := p.sizes(); return float64(n) }),
			gauge("held_bytes", "Bytes of bodies and replies kept for warming.", func() float64 { return float64(p.held.Load()) }))
	}
	return m
}

func (m *metrics) outcome(outcome, reason string) { m.outcomes.WithLabelValues(outcome, reason).Inc() }

func (m *metrics) planted(t Trigger, used bool, tokens int) {
	outcome := outcomeWasted
	if used {
		outcome = outcomeUsed
	}
	m.copyUse.WithLabelValues(string(t), outcome).Add(float64(tokens))
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
