package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// WriteText writes r as tables.
func (r *Run) WriteText(w io.Writer) error {
	var b strings.Builder
	r.head(&b)
	latencies(&b, "TTFT, ms (before the write to the first token of any kind)", r, r.PerTurnTTFT, r.AggregateTTFT)
	if r.SteadyTTFT != nil && r.SteadyTTFT.Count != r.AggregateTTFT.Count {
		row(&b, "steady", r.SteadyTTFT, -1)
	}
	if r.reasoning() {
		latencies(&b, "first visible output, ms", r, r.PerTurnFirstOutput, summarise(values(r.Records, firstOutput, nil)))
	}
	latencies(&b, "ITL, ms a token ((E2E − TTFT) / (tokens − 1), one value a turn)", r, r.PerTurnITL, r.AggregateITL)
	if g := r.AggregateGaps; g != nil {
		row(&b, "gaps", g, -1)
	}
	latencies(&b, "E2E, ms (before the write to the last token)", r, r.PerTurnLatency, r.AggregateLatency)
	r.tokenTable(&b)
	r.notes(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (w Workload) describe(speculative string) string {
	think := "no think time"
	if w.MeanDelay > 0 {
		think = "think time exponential, mean " + seconds(w.MeanDelay)
	}
	start := "all users start at once (burst)"
	if w.Stagger > 0 {
		start = fmt.Sprintf("users start over %s (ramp)", seconds(w.Stagger))
	}
	out := fmt.Sprintf("%d users × %d turns, %d user tokens, at most %d out", w.Users, w.Turns, w.UserTokens, w.MaxCompletionTokens)
	if w.ToolSteps > 0 {
		out += fmt.Sprintf(", %d tool calls a turn", w.ToolSteps)
	}
	if w.IgnoreEOS {
		out += ", ignore_eos"
	}
	out += fmt.Sprintf("\nclosed loop, %s, %s, seed %d, plan %s", think, start, w.Seed, w.Plan)
	if speculative != "" {
		out += "\nspeculative prefill " + speculative
	}
	return out
}

func (r *Run) head(b *strings.Builder) {
	on := "off"
	if r.Speculative {
		on = "on"
	}
	fmt.Fprintf(b, "%s, model %s\n%s, salt %s\n\n", r.URL, r.Model, r.Workload.describe(on), r.Salt)
	fmt.Fprintf(b, "turns       %d planned, %d answered, %d failed%s, %d dropped, %d cancelled, in %s\n",
		r.Planned, r.Successful, r.Failed, failures(r.Failures), r.Dropped, r.Cancelled, seconds(r.Duration))
	if s := time.Duration(r.Duration).Seconds(); s > 0 {
		fmt.Fprintf(b, "throughput  %.2f requests/s, %.1f output tokens/s\n", float64(r.Successful)/s, float64(r.Tokens.Completion)/s)
	}
	fmt.Fprintf(b, "phases      ramp %d, steady %d, drain %d turns; %.0f %% of turns were due in the first second\n",
		r.Phases[phaseRamp], r.Phases[phaseSteady], r.Phases[phaseDrain], 100*r.FirstSecondShare)
	if r.Lag != nil {
		fmt.Fprintf(b, "lag         p50 %s, p99 %s, max %s ms (the client sent that much later than due)\n", ms(r.Lag.P50), ms(r.Lag.P99), ms(r.Lag.Max))
	}
	fmt.Fprintf(b, "cache       %s\n", r.Tokens.describe())
}

func (t Tokens) describe() string {
	if t.Usage == 0 {
		return "unknown: no answer said its token usage"
	}
	hit, ok := t.Hit()
	if !ok {
		return "unknown: no answer said cached tokens (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report)"
	}
	s := fmt.Sprintf("%.1f %% of prompt tokens were cached (%d of %d)", 100*hit, t.Cached, t.CachedPrompt)
	if t.CachedAnswers < t.Answers {
		s += fmt.Sprintf("; only %d of %d answers said so, the others count for nothing", t.CachedAnswers, t.Answers)
	}
	return s
}

func failures(kinds map[string]int) string {
	if len(kinds) == 0 {
		return ""
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		parts = append(parts, fmt.Sprintf("%s: %d", k, kinds[k]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func latencies(b *strings.Builder, title string, r *Run, turns []TurnSummary, all *Summary) {
	if all == nil {
		return
	}
	fmt.Fprintf(b, "\n%s\n  %6s %7s %7s %9s %9s %9s %9s %9s %9s\n", title, "turn", "count", "failed", "min", "p50", "p90", "p95", "p99", "max")
	failed := map[int]int{}
	for i := range r.Records {
		if q := &r.Records[i]; !q.OK {
			failed[q.Turn]++
		}
	}
	for _, t := range turns {
		row(b, fmt.Sprint(t.Turn+1), &t.Summary, failed[t.Turn])
	}
	row(b, "all", all, r.Failed)
}

// row writes one line of a table; failed −1 leaves that column empty.
func row(b *strings.Builder, name string, s *Summary, failed int) {
	f := ""
	if failed >= 0 {
		f = fmt.Sprint(failed)
	}
	fmt.Fprintf(b, "  %6s %7d %7s %9s %9s %9s %9s %9s %9s\n", name, s.Count, f, ms(s.Min), ms(s.P50), ms(s.P90), ms(s.P95), ms(s.P99), ms(s.Max))
}

// reasoning tells whether any turn's first visible token is not its first token.
func (r *Run) reasoning() bool {
	return slices.ContainsFunc(r.Records, func(q Record) bool {
		return q.OK && (q.FirstOutput == nil || *q.FirstOutput != q.TTFT)
	})
}

func (r *Run) tokenTable(b *strings.Builder) {
	if r.Tokens.Usage == 0 {
		return
	}
	fmt.Fprintf(b, "\ntokens (usage of the endpoint, mean a turn)\n  %6s %9s %9s %9s %9s %9s\n", "turn", "prompt", "cached", "hit %", "output", "reasoning")
	line := func(name string, t Tokens) {
		cached, share := "–", "–"
		if hit, ok := t.Hit(); ok {
			cached, share = fmt.Sprintf("%.0f", float64(t.Cached)/float64(t.CachedAnswers)), fmt.Sprintf("%.1f", 100*hit)
		}
		reasoning := "–"
		if t.ReasoningAnswers > 0 {
			reasoning = fmt.Sprintf("%.0f", float64(t.Reasoning)/float64(t.ReasoningAnswers))
		}
		fmt.Fprintf(b, "  %6s %9.0f %9s %9s %9.0f %9s\n", name, float64(t.Prompt)/float64(max(t.Usage, 1)), cached, share, float64(t.Completion)/float64(max(t.Answers, 1)), reasoning)
	}
	for turn, t := range r.TurnTokens {
		if t.Answers > 0 {
			line(fmt.Sprint(turn+1), t)
		}
	}
	line("all", r.Tokens)
}

// notes writes what a reader must know before using the numbers.
func (r *Run) notes(b *strings.Builder) {
	b.WriteString("\npercentiles are type 7 (linear between order statistics)")
	if r.Successful < 100 {
		fmt.Fprintf(b, "; with %d answers a p99 is little but the maximum", r.Successful)
	}
	b.WriteString("\n")
	if r.Interrupted {
		b.WriteString("interrupted: these are the turns that were measured until then\n")
	}
	if r.ClockErrors > 0 {
		fmt.Fprintf(b, "%d turns are left out: the clock went back while they ran\n", r.ClockErrors)
	}
	if late(r.Lag, r.AggregateTTFT) {
		fmt.Fprintf(b, "the client was late: lag p99 %s ms against TTFT p50 %s ms; its machine is too busy for these numbers\n", ms(r.Lag.P99), ms(r.AggregateTTFT.P50))
	}
	if r.GapsLeftOut > 0 {
		fmt.Fprintf(b, "gaps leave out the last %d, beyond what the client keeps\n", r.GapsLeftOut)
	}
	noDone := 0
	shown := map[string]bool{}
	for i := range r.Records {
		q := &r.Records[i]
		if q.NoDone {
			noDone++
		}
		if !q.OK && len(shown) < 3 && !shown[q.Failure] {
			shown[q.Failure] = true
			fmt.Fprintf(b, "failed, user %d turn %d, %s: %s\n", q.User, q.Turn+1, q.Failure, q.Error)
		}
	}
	if noDone > 0 {
		fmt.Fprintf(b, "%d streams ended without [DONE], after a finish_reason; they count as answered\n", noDone)
	}
	if u := r.Successful - r.Tokens.Usage; u > 0 {
		fmt.Fprintf(b, "%d answers said no usage: their output tokens are counted as chunks\n", u)
	}
}

// late tells whether the client sent so much later than due that its machine, not the
// endpoint, may have made the numbers.
func late(lag, ttft *Summary) bool {
	return lag != nil && ttft != nil && (lag.P99 > Micros(10*time.Millisecond) || lag.P99 > ttft.P50/10)
}

func ms(m Micros) string {
	return fmt.Sprintf("%.1f", float64(m)/float64(time.Millisecond))
}

func seconds(m Micros) string {
	d := time.Duration(m)
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
}
