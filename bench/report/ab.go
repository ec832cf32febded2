package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Verdicts of a comparison.
const (
	Better        = "better"
	Worse         = "worse"
	NoDifference  = "no detectable difference"
	NotComparable = "not comparable"
)

// MinPairs is the fewest pairs of blocks from which an interval is made.
const MinPairs = 3

// Block is one block of an A/B run: the whole plan once, under one arm, with a salt of
// its own, so that no block finds what another left in a cache.
type Block struct {
	Pair        int    `json:"pair"` // from 0
	Treatment   bool   `json:"treatment"`
	Salt        string `json:"salt"`
	Start       Micros `json:"start_us"` // from the start of the whole run
	Duration    Micros `json:"duration_us"`
	Interrupted bool   `json:"interrupted,omitempty"`
	Cancelled   int    `json:"cancelled_turns"`
	ClockErrors int    `json:"clock_errors"`
	// Counters are how much each warmroute_prefill_* series of the proxy grew during the
	// block; nil where there is no metrics URL.
	Counters map[string]float64 `json:"counters,omitempty"`
	Records  []Record           `json:"raw_results"`
	Probes   []Record           `json:"raw_probes,omitempty"` // strangers' requests beside it
}

// AB is an A/B run of interleaved blocks.
type AB struct {
	Format      string            `json:"format"`
	Version     string            `json:"version"`
	URL         string            `json:"url"`
	Model       string            `json:"model"`
	Started     time.Time         `json:"started"`
	Duration    Micros            `json:"duration_us"`
	Interrupted bool              `json:"interrupted"`
	Workload    Workload          `json:"workload"`
	AA          bool              `json:"aa"` // both arms are the baseline
	Pairs       int               `json:"planned_pairs"`
	ProbeRate   float64           `json:"probes_per_second,omitempty"`
	Result      Result            `json:"result"`
	Definitions map[string]string `json:"definitions"`
	Blocks      []Block           `json:"blocks"`
}

// Arm sums one arm of an A/B run.
type Arm struct {
	Turns    int                `json:"turns"`
	Failed   int                `json:"failed"`
	Failures map[string]int     `json:"failures"`
	Dropped  int                `json:"dropped"`
	Tokens   Tokens             `json:"tokens"`      // all turns
	First    Tokens             `json:"first_turns"` // turn 1
	Later    Tokens             `json:"later_turns"` // turns ≥ 2
	Lag      *Summary           `json:"lag"`         // of the generator
	States   map[string]int     `json:"speculation"` // X-Warmroute-Speculation of the responses
	Counters map[string]float64 `json:"counters"`    // Σ over blocks
	Duration Micros             `json:"duration_us"`

	ttft *Summary // what the lag is measured against
}

// Result is what an A/B run says.
type Result struct {
	Verdict    string     `json:"verdict"`
	Reason     string     `json:"reason,omitempty"` // of "not comparable"
	Headline   *Estimate  `json:"headline"`         // TTFT p50 of turns ≥ 2, fixed in advance
	Detectable float64    `json:"detectable"`       // smallest change found in 80 of 100 repetitions
	Others     []Estimate `json:"others"`
	Turns      []Estimate `json:"per_turn"`
	A          Arm        `json:"a"`
	B          Arm        `json:"b"`
	// ExtraPrefill are the prompt tokens that warm-ups had computed; nil where the proxy's
	// metrics do not say.
	ExtraPrefill *float64 `json:"extra_prefill_tokens"`
	// MoreWork is by which share B's engines computed more prompt tokens than A's, warm-ups
	// included; nil where it is not known.
	MoreWork *float64 `json:"more_prefill_work"`

	// Probes are the TTFT ratios of probes, p50 first, and ProbeVerdict what the p50 says:
	// the cost to others. Both are empty where no probes ran.
	Probes       []Estimate `json:"probes,omitempty"`
	ProbeVerdict string     `json:"probe_verdict,omitempty"`
}

// complete returns the pairs whose two blocks ran to their end.
func (x *AB) complete(records func(*Block) []Record) []pair {
	byPair := map[int]*[2]*Block{}
	for i := range x.Blocks {
		b := &x.Blocks[i]
		if b.Interrupted {
			continue
		}
		if byPair[b.Pair] == nil {
			byPair[b.Pair] = &[2]*Block{}
		}
		side := 0
		if b.Treatment {
			side = 1
		}
		byPair[b.Pair][side] = b
	}
	var out []pair
	for p := range x.Pairs {
		if two := byPair[p]; two != nil && two[0] != nil && two[1] != nil {
			out = append(out, pair{records(two[0]), records(two[1])})
		}
	}
	return out
}

// Judge computes Result from the blocks.
func (x *AB) Judge() {
	x.Format, x.Definitions = abFormat, definitions
	r := &x.Result
	*r = Result{A: x.arm(false), B: x.arm(true)}
	r.ExtraPrefill = extraPrefill(&r.B)
	r.MoreWork = moreWork(r)
	x.judgeProbes()
	pairs := x.complete(func(b *Block) []Record { return b.Records })
	seed := x.Workload.Seed
	add := func(name string, m measure, keep func(*Record) bool, s statistic) {
		if e, ok := estimate(name, pairs, m, keep, s); ok {
			r.Others = append(r.Others, e)
		}
	}
	if e, ok := estimate("TTFT p50, turns ≥ 2", pairs, ttft, later, median); ok {
		e.widen(pairs, ttft, later, median, seed)
		r.Headline = &e
		if len(pairs) >= MinPairs {
			r.Detectable = e.detectable()
		}
	}
	add("TTFT p90, turns ≥ 2", ttft, later, quantile(.9))
	add("TTFT mean, turns ≥ 2", ttft, later, average)
	if fewest(pairs, ttft, later) >= tailSamples {
		add("TTFT p99, turns ≥ 2", ttft, later, quantile(.99))
	}
	add("first output p50, turns ≥ 2", firstOutput, later, median)
	add("TTFT p50, turn 1", ttft, first, median)
	add("ITL p50", itl, nil, median)
	add("E2E p50", e2e, nil, median)
	for turn := 1; turn < x.Workload.Turns; turn++ {
		if e, ok := estimate(fmt.Sprintf("turn %d", turn+1), pairs, ttft, atTurn(turn), median); ok {
			r.Turns = append(r.Turns, e)
		}
	}
	holm(r.Turns)

	if r.Reason = x.refusal(pairs); r.Reason != "" {
		r.Verdict = NotComparable
		return
	}
	r.Verdict = r.Headline.verdict()
}

// verdict is what a ratio of latencies says.
func (e *Estimate) verdict() string {
	switch {
	case !e.differs():
		return NoDifference
	case e.Ratio < 1:
		return Better
	}
	return Worse
}

// judgeProbes compares the probes of the two arms by the same rules as the headline.
func (x *AB) judgeProbes() {
	r := &x.Result
	pairs := x.complete(func(b *Block) []Record { return b.Probes })
	if x.ProbeRate == 0 || len(pairs) < MinPairs {
		return
	}
	for _, s := range []struct {
		name string
		of   statistic
	}{{"probe TTFT p50", median}, {"probe TTFT p95", quantile(.95)}} {
		if e, ok := estimate(s.name, pairs, ttft, nil, s.of); ok {
			e.widen(pairs, ttft, nil, s.of, x.Workload.Seed)
			r.Probes = append(r.Probes, e)
		}
	}
	if len(r.Probes) > 0 {
		r.ProbeVerdict = r.Probes[0].verdict()
	}
}

// moreWork compares the prompt tokens that the arms' engines computed per turn.
func moreWork(r *Result) *float64 {
	computed := func(t Tokens) float64 { return float64(t.CachedPrompt - t.Cached) }
	a, b := r.A.Tokens, r.B.Tokens
	if r.ExtraPrefill == nil || computed(a) == 0 || a.CachedAnswers == 0 || b.CachedAnswers == 0 {
		return nil
	}
	more := (computed(b)+*r.ExtraPrefill)/float64(b.CachedAnswers)/(computed(a)/float64(a.CachedAnswers)) - 1
	return &more
}

// refusal says why the arms may not be compared, "" if they may.
func (x *AB) refusal(pairs []pair) string {
	a, b := &x.Result.A, &x.Result.B
	if len(pairs) < MinPairs {
		why := ""
		if x.Interrupted {
			why = ": the run was interrupted"
		}
		return fmt.Sprintf("%d complete pairs of blocks, at least %d are needed%s", len(pairs), MinPairs, why)
	}
	if x.Workload.Turns < 2 {
		return "one turn a conversation: there is no turn ≥ 2 to compare"
	}
	if x.Result.Headline == nil {
		return "a block has no answered turn ≥ 2" + failures(a.Failures) + failures(b.Failures)
	}
	share := func(n, of int) float64 { return float64(n) / float64(max(of, 1)) }
	fa, fb := share(a.Failed, a.Turns), share(b.Failed, b.Turns)
	if math.Abs(fa-fb) > 0.005 {
		return fmt.Sprintf("unequal failures: %.1f %% of A's turns%s, %.1f %% of B's%s", 100*fa, failures(a.Failures), 100*fb, failures(b.Failures))
	}
	for _, arm := range []struct {
		name string
		t    Tokens
	}{{"A", a.Tokens}, {"B", b.Tokens}} {
		if share(arm.t.Answers-arm.t.Usage, arm.t.Answers) > 0.005 {
			return fmt.Sprintf("missing usage: %d of %d answers of %s said no token counts, so nothing shows that the arms asked and answered the same", arm.t.Answers-arm.t.Usage, arm.t.Answers, arm.name)
		}
	}
	per := func(sum, n int) float64 { return float64(sum) / float64(max(n, 1)) }
	far := func(p, q float64) bool { return p > 0 && q > 0 && math.Abs(p-q) > 0.05*max(p, q) }
	if p, q := per(a.Tokens.Completion, a.Tokens.Answers), per(b.Tokens.Completion, b.Tokens.Answers); far(p, q) {
		return fmt.Sprintf("unequal answers: %.0f output tokens a turn in A, %.0f in B (use --ignore-eos, or a larger run)", p, q)
	}
	if p, q := per(a.Tokens.Prompt, a.Tokens.Usage), per(b.Tokens.Prompt, b.Tokens.Usage); far(p, q) {
		return fmt.Sprintf("unequal prompts: %.0f prompt tokens a turn in A, %.0f in B", p, q)
	}
	ha, okA := a.First.Hit()
	hb, okB := b.First.Hit()
	if okA && okB && math.Abs(ha-hb) > 0.05 {
		return fmt.Sprintf("one arm started warm: %.0f %% of turn 1's prompt was cached in A, %.0f %% in B", 100*ha, 100*hb)
	}
	return ""
}

// arm sums the complete and incomplete blocks of one arm.
func (x *AB) arm(treatment bool) Arm {
	out := Arm{Failures: map[string]int{}, States: map[string]int{}}
	var all []Record
	for i := range x.Blocks {
		b := &x.Blocks[i]
		if b.Treatment != treatment {
			continue
		}
		all = append(all, b.Records...)
		out.Duration += b.Duration
		out.Dropped += max(x.Workload.planned()-len(b.Records)-b.Cancelled-b.ClockErrors, 0)
		for name, v := range b.Counters {
			if out.Counters == nil {
				out.Counters = map[string]float64{}
			}
			out.Counters[name] += v
		}
	}
	out.Turns = len(all)
	for i := range all {
		q := &all[i]
		if !q.OK {
			out.Failed++
			out.Failures[q.Failure]++
		}
		if q.Speculation != "" && (len(out.States) < 16 || out.States[q.Speculation] > 0) {
			out.States[q.Speculation]++
		}
	}
	out.Tokens, out.First, out.Later = sumTokens(all, nil), sumTokens(all, first), sumTokens(all, later)
	out.Lag, out.ttft = summarise(values(all, lag, nil)), summarise(values(all, ttft, nil))
	return out
}

// extraPrefill sums the tokens that warm-ups sent to workers to be computed.
func extraPrefill(b *Arm) *float64 {
	if b.Counters == nil {
		return nil
	}
	sum := 0.0 // also where the series is absent: no warm-up was sent yet
	for series, v := range b.Counters {
		if strings.HasPrefix(series, "warmroute_prefill_tokens_total{") && strings.Contains(series, `kind="sent"`) {
			sum += v
		}
	}
	return &sum
}

func fewest(pairs []pair, m measure, keep func(*Record) bool) int {
	n := math.MaxInt
	for _, p := range pairs {
		n = min(n, len(values(p.a, m, keep)), len(values(p.b, m, keep)))
	}
	return n
}

// WriteJSON writes x as a file.
func (x *AB) WriteJSON(w io.Writer) error { return writeJSON(w, x) }

// ReadAB reads a file that WriteJSON wrote and judges it again.
func ReadAB(from io.Reader) (*AB, error) {
	var x AB
	if err := json.NewDecoder(from).Decode(&x); err != nil {
		return nil, fmt.Errorf("not JSON of warmroute bench ab: %w", err)
	}
	if x.Format != abFormat {
		return nil, fmt.Errorf("its format is %q and this version reads %q", x.Format, abFormat)
	}
	x.Judge()
	return &x, nil
}
