package report

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Refusal says why two runs may not be compared.
type Refusal struct{ Reason string }

func (e *Refusal) Error() string { return NotComparable + ": " + e.Reason }

// Compare writes the ratios b / a of two runs, turn by turn, or refuses. It gives no
// verdict: one run an arm shows no noise, and differences of a few per cent between two
// runs of the same thing are common.
func Compare(w io.Writer, nameA, nameB string, a, b *Run) error {
	if err := refuse(a, b); err != nil {
		return err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "A  %s\nB  %s\n%s\n", describe(nameA, a), describe(nameB, b), a.Workload.describe(""))
	for _, d := range [][3]string{{"model", a.Model, b.Model}, {"URL", a.URL, b.URL}, {"version", a.Version, b.Version}} {
		if d[1] != d[2] {
			fmt.Fprintf(&out, "%s differs: %s in A, %s in B\n", d[0], d[1], d[2])
		}
	}
	if a.Salt == b.Salt {
		fmt.Fprintf(&out, "both runs have salt %s: the later one may have found the earlier one's prompts in the cache\n", a.Salt)
	}
	table := func(title string, m measure, s statistic) {
		fmt.Fprintf(&out, "\n%-24s %7s %9s %7s %9s %8s %9s\n", title, "n A", "A", "n B", "B", "B / A", "change")
		line := func(name string, keep func(*Record) bool) {
			va, vb := values(a.Records, m, keep), values(b.Records, m, keep)
			if len(va) == 0 || len(vb) == 0 {
				return
			}
			x, y := s(va), s(vb)
			ratio, change := "–", "–"
			if x > 0 {
				ratio, change = fmt.Sprintf("%.3f", y/x), percent(y/x)
			}
			fmt.Fprintf(&out, "%24s %7d %9s %7d %9s %8s %9s\n", name, len(va), ms(Micros(math.Round(x))), len(vb), ms(Micros(math.Round(y))), ratio, change)
		}
		for turn := range a.NumTurns {
			line(fmt.Sprintf("turn %d", turn+1), atTurn(turn))
		}
		if a.NumTurns > 1 {
			line("turns ≥ 2", later)
		}
	}
	table("TTFT p50, ms", ttft, median)
	if a.reasoning() || b.reasoning() {
		table("first output p50, ms", firstOutput, median)
	}
	table("ITL p50, ms", itl, median)
	table("E2E p50, ms", e2e, median)
	fmt.Fprintf(&out, "\n%-8s %-6s %d of %d turns in A, %d of %d in B\n", "failed", "", a.Failed, a.Requests, b.Failed, b.Requests)
	fmt.Fprintf(&out, "%-8s %-6s %s\n%-8s %-6s %s\n", "cached", "A", a.Tokens.describe(), "", "B", b.Tokens.describe())
	out.WriteString("\nno verdict: with one run an arm, run-to-run noise of 3 % looks like an effect in a third of all comparisons.\n" +
		"warmroute bench ab interleaves the arms and gives an interval.\n")
	_, err := io.WriteString(w, out.String())
	return err
}

func describe(name string, r *Run) string {
	on := "off"
	if r.Speculative {
		on = "on"
	}
	return fmt.Sprintf("%s: speculative prefill %s, %d turns answered", name, on, r.Successful)
}

// refuse refuses runs that asked for different things or answered differently often.
func refuse(a, b *Run) error {
	wa, wb := a.Workload, b.Workload
	if wa.Seed != wb.Seed {
		return &Refusal{fmt.Sprintf("different seeds, %d and %d: each run drew its own texts and think times", wa.Seed, wb.Seed)}
	}
	if wa.Plan != wb.Plan || wa.Plan == "" {
		var diff []string
		add := func(flag string, x, y any) {
			if x != y {
				diff = append(diff, fmt.Sprintf("%s %v and %v", flag, x, y))
			}
		}
		add("--num-users", wa.Users, wb.Users)
		add("--num-turns", wa.Turns, wb.Turns)
		add("--num-user-tokens", wa.UserTokens, wb.UserTokens)
		add("--max-completion-tokens", wa.MaxCompletionTokens, wb.MaxCompletionTokens)
		add("mean delay", seconds(wa.MeanDelay), seconds(wb.MeanDelay))
		add("--stagger", seconds(wa.Stagger), seconds(wb.Stagger))
		add("--ignore-eos", wa.IgnoreEOS, wb.IgnoreEOS)
		add("--echo-reasoning", wa.EchoReasoning, wb.EchoReasoning)
		add("--extra-body", wa.Extra, wb.Extra)
		if diff == nil {
			diff = []string{fmt.Sprintf("plans %q and %q, made by versions %s and %s", wa.Plan, wb.Plan, a.Version, b.Version)}
		}
		return &Refusal{"different workloads: " + strings.Join(diff, ", ")}
	}
	if a.Successful == 0 || b.Successful == 0 {
		return &Refusal{"a run has no answered turn"}
	}
	fa, fb := float64(a.Failed)/float64(a.Requests), float64(b.Failed)/float64(b.Requests)
	if math.Abs(fa-fb) > 0.005 {
		return &Refusal{fmt.Sprintf("unequal failures: %.1f %% of A's turns%s, %.1f %% of B's%s", 100*fa, failures(a.Failures), 100*fb, failures(b.Failures))}
	}
	return nil
}
