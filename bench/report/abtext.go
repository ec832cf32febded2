package report

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// WriteText writes the verdict and what it rests on.
func (x *AB) WriteText(w io.Writer) error {
	var b strings.Builder
	what := "A = speculative prefill off, B = on"
	if x.AA {
		what = "A/A: both arms off, so that any difference is noise"
	}
	fmt.Fprintf(&b, "%s, model %s\n%s\n%s\n", x.URL, x.Model, x.Workload.describe(""), what)
	fmt.Fprintf(&b, "%d pairs of interleaved blocks%s, each with its own salt, %s\n\n", x.Pairs, x.order(), seconds(x.Duration))
	fmt.Fprintf(&b, "verdict: %s\n", x.Sentence())
	if x.Result.ProbeVerdict != "" {
		fmt.Fprintf(&b, "cost to others: %s\n", x.harm())
	}
	if x.Result.Verdict == NotComparable {
		b.WriteString("the numbers below help to find out why; nothing follows from them\n")
	}
	x.estimates(&b)
	x.pairTable(&b)
	x.costs(&b)
	x.lateness(&b)
	b.WriteString("\nratio = B / A, exp of the mean log ratio over pairs; 95 % t-interval over pairs, for the headline (*) the wider\n" +
		"of that and a bootstrap over blocks and conversations. Only the headline was fixed in advance: read the\n" +
		"other rows as hints. Percentiles are type 7. Failed turns end their conversation and are in no latency.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// order shows the blocks as they ran.
func (x *AB) order() string {
	var out strings.Builder
	last := -1
	for i := range x.Blocks {
		blk := &x.Blocks[i]
		if blk.Pair != last {
			out.WriteString(" ")
			last = blk.Pair
		}
		if blk.Treatment {
			out.WriteString("B")
		} else {
			out.WriteString("A")
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return " (" + out.String()[1:] + ")"
}

// Sentence is the verdict in one line.
func (x *AB) Sentence() string {
	r := &x.Result
	if r.Verdict == NotComparable {
		return NotComparable + ": " + r.Reason
	}
	h := r.Headline
	s := fmt.Sprintf("%s: TTFT p50 of turns ≥ 2 is %s (× %.3f, 95 %% interval × %.3f to × %.3f, %d pairs)",
		r.Verdict, percent(h.Ratio), h.Ratio, h.Low, h.High, h.Pairs)
	if r.Verdict == NoDifference {
		s += fmt.Sprintf("; a change of %.1f %% would have been seen in 80 of 100 such runs", 100*r.Detectable)
	}
	return s
}

// harm is what the probes say in one line.
func (x *AB) harm() string {
	r := &x.Result
	var parts []string
	for i := range r.Probes {
		e := &r.Probes[i]
		parts = append(parts, fmt.Sprintf("%s × %.3f (95 %% interval × %.3f to × %.3f)", e.Name, e.Ratio, e.Low, e.High))
	}
	return r.ProbeVerdict + ": " + strings.Join(parts, ", ")
}

func percent(ratio float64) string {
	return fmt.Sprintf("%+.1f %%", 100*(ratio-1))
}

func (x *AB) estimates(b *strings.Builder) {
	r := &x.Result
	if r.Headline == nil && len(r.Others) == 0 {
		return
	}
	fmt.Fprintf(b, "\n  %-28s %9s %9s %8s   %s\n", "ms, mean over blocks", "A", "B", "B / A", "95 % interval")
	line := func(e *Estimate, mark, note string) {
		fmt.Fprintf(b, "  %-28s %9s %9s %8.3f   %.3f to %.3f%s\n", e.Name+mark, ms(e.A), ms(e.B), e.Ratio, e.Low, e.High, note)
	}
	if r.Headline != nil {
		note := ""
		if r.Headline.Method != "t" {
			note = "  (" + r.Headline.Method + ")"
		}
		line(r.Headline, " *", note)
	}
	for i := range r.Probes {
		line(&r.Probes[i], "", "")
	}
	for i := range r.Others {
		line(&r.Others[i], "", "")
	}
	if len(r.Turns) > 0 {
		fmt.Fprintf(b, "\n  %-28s %9s %9s %8s   %-17s %s\n", "TTFT p50 by turn, ms", "A", "B", "B / A", "95 % interval", "p (Holm)")
		for i := range r.Turns {
			e := &r.Turns[i]
			fmt.Fprintf(b, "  %-28s %9s %9s %8.3f   %-17s %.3f\n", e.Name, ms(e.A), ms(e.B), e.Ratio, fmt.Sprintf("%.3f to %.3f", e.Low, e.High), e.Holm)
		}
	}
}

func (x *AB) pairTable(b *strings.Builder) {
	h := x.Result.Headline
	if h == nil {
		return
	}
	b.WriteString("\n  pair by pair, B / A:")
	slower := 0
	for _, l := range h.logs {
		fmt.Fprintf(b, " %.3f", math.Exp(l))
		if l > 0 {
			slower++
		}
	}
	b.WriteString("\n")
	if k := len(h.logs); k >= 6 {
		fmt.Fprintf(b, "  sign test: B slower in %d of %d pairs, p %.3f\n", slower, k, signTest(slower, k))
	}
}

// signTest is the two-sided probability of a split at least as uneven, if heads and
// tails are equally likely.
func signTest(heads, n int) float64 {
	heads = min(heads, n-heads)
	p, choose := 0.0, 1.0
	for i := 0; i <= heads; i++ {
		p += choose
		choose *= float64(n-i) / float64(i+1)
	}
	return min(1, 2*p*math.Pow(0.5, float64(n)))
}

// costs writes what the treatment took and what it changed in the caches.
func (x *AB) costs(b *strings.Builder) {
	r := &x.Result
	fmt.Fprintf(b, "\n  %-28s %9s %9s\n", "", "A", "B")
	ints := func(name string, a, c int) { fmt.Fprintf(b, "  %-28s %9d %9d\n", name, a, c) }
	ints("turns", r.A.Turns, r.B.Turns)
	ints("failed", r.A.Failed, r.B.Failed)
	ints("dropped", r.A.Dropped, r.B.Dropped)
	texts := func(name string, f func(*Arm) string) {
		fmt.Fprintf(b, "  %-28s %9s %9s\n", name, f(&r.A), f(&r.B))
	}
	texts("generator lag p99, ms", func(a *Arm) string {
		if a.Lag == nil {
			return "–"
		}
		return ms(a.Lag.P99)
	})
	texts("output tokens/s", func(a *Arm) string {
		if a.Duration == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f", float64(a.Tokens.Completion)/time.Duration(a.Duration).Seconds())
	})
	hit := func(t func(*Arm) Tokens) func(*Arm) string {
		return func(a *Arm) string {
			if share, ok := t(a).Hit(); ok {
				return fmt.Sprintf("%.1f", 100*share)
			}
			return "–"
		}
	}
	texts("cached, turn 1, %", hit(func(a *Arm) Tokens { return a.First }))
	texts("cached, turns ≥ 2, %", hit(func(a *Arm) Tokens { return a.Later }))
	if !x.AA {
		x.speculation(b)
	}
}

// lateness warns where the generator was late in an arm.
func (x *AB) lateness(b *strings.Builder) {
	a, t := &x.Result.A, &x.Result.B
	if !late(a.Lag, a.ttft) && !late(t.Lag, t.ttft) {
		return
	}
	arm := func(s *Arm) string {
		if s.Lag == nil || s.ttft == nil {
			return "–"
		}
		return fmt.Sprintf("%s ms against TTFT p50 %s ms", ms(s.Lag.P99), ms(s.ttft.P50))
	}
	fmt.Fprintf(b, "\nthe client was late: lag p99 A %s, B %s; its machine is too busy for these numbers\n", arm(a), arm(t))
}

func (x *AB) speculation(b *strings.Builder) {
	r := &x.Result
	b.WriteString("\n  speculative prefill, B: ")
	if len(r.B.States) == 0 && r.B.Counters == nil {
		b.WriteString("the endpoint says nothing of it (X-Warmroute-Speculation header; --metrics-url)\n")
		return
	}
	b.WriteString("extra prefill ")
	if r.ExtraPrefill == nil {
		b.WriteString("unknown (--metrics-url)")
	} else {
		fmt.Fprintf(b, "%.0f tokens", *r.ExtraPrefill)
		if p := r.B.Tokens.Prompt; p > 0 {
			fmt.Fprintf(b, ", %.1f %% on top of the prompts' %d", 100**r.ExtraPrefill/float64(p), p)
		}
	}
	if r.MoreWork != nil {
		fmt.Fprintf(b, "; engines computed %+.1f %% prompt tokens a turn, all told", 100**r.MoreWork)
	}
	b.WriteString("\n")
	if len(r.B.States) > 0 {
		var parts []string
		for _, s := range slices.Sorted(maps.Keys(r.B.States)) {
			parts = append(parts, fmt.Sprintf("%s %d", s, r.B.States[s]))
		}
		fmt.Fprintf(b, "  turns by X-Warmroute-Speculation: %s\n", strings.Join(parts, ", "))
	}
	for _, series := range slices.Sorted(maps.Keys(r.B.Counters)) {
		name, _, _ := strings.Cut(series, "{")
		if v := r.B.Counters[series]; strings.HasSuffix(name, "_total") && (v != 0 || r.A.Counters[series] != 0) {
			fmt.Fprintf(b, "  %s %s", series, number(v))
			if a := r.A.Counters[series]; a != 0 {
				fmt.Fprintf(b, " (in A %s)", number(a))
			}
			b.WriteString("\n")
		}
	}
}

func number(v float64) string {
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
