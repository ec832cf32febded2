package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Formats of the files.
const (
	runFormat = "warmroute-bench/1"
	abFormat  = "warmroute-bench-ab/1"
)

// Workload is what a run asks of the endpoint. Two runs may be compared if everything
// but the salt and the treatment is equal; Plan proves it.
type Workload struct {
	Users               int    `json:"num_users"`
	Turns               int    `json:"num_turns"`
	UserTokens          int    `json:"num_user_tokens"`
	MaxCompletionTokens int    `json:"max_completion_tokens"`
	MeanDelay           Micros `json:"mean_delay_us"` // exponential
	Stagger             Micros `json:"stagger_us"`    // over which the users start
	IgnoreEOS           bool   `json:"ignore_eos"`
	EchoReasoning       bool   `json:"echo_reasoning"`
	ToolSteps           int    `json:"tool_steps,omitempty"`    // calls of a tool in each turn
	ToolDelay           Micros `json:"tool_delay_us,omitempty"` // what the tool takes
	Seed                uint64 `json:"seed"`
	Extra               string `json:"extra_body,omitempty"`
	// Plan is a hash over every text, length, think time and start, without the salt.
	Plan string `json:"plan"`
}

// planned is the number of requests.
func (w *Workload) planned() int { return w.Users * w.Turns * (1 + w.ToolSteps) }

// TurnSummary is a Summary of one turn.
type TurnSummary struct {
	Turn int `json:"turn"` // from 0
	Summary
}

// Tokens are sums over the answered turns.
type Tokens struct {
	Prompt     int `json:"prompt"`
	Completion int `json:"completion"`
	Reasoning  int `json:"reasoning"`
	Cached     int `json:"cached"`
	// CachedPrompt sums the prompts of the answers that said cached tokens.
	CachedPrompt int `json:"cached_prompt"`
	// Answers that said usage, cached and reasoning tokens, and all.
	Usage            int `json:"usage_answers"`
	CachedAnswers    int `json:"cached_answers"`
	ReasoningAnswers int `json:"reasoning_answers"`
	Answers          int `json:"answers"`
}

// Hit is the share of prompt tokens that were cached, Σcached / Σprompt over the answers
// that said so, turn 1 included. ok is false where none did.
func (t Tokens) Hit() (share float64, ok bool) {
	if t.CachedPrompt == 0 {
		return 0, false
	}
	return float64(t.Cached) / float64(t.CachedPrompt), true
}

// Run is one run of bench: Dynamo's keys first, ours after.
type Run struct {
	NumUsers         int           `json:"num_users"`
	NumTurns         int           `json:"num_turns"`
	Requests         int           `json:"total_requests"`
	Successful       int           `json:"successful_requests"`
	Failed           int           `json:"failed_requests"`
	Speculative      bool          `json:"speculative_prefill"`
	AggregateTTFT    *Summary      `json:"aggregate_ttft"`
	AggregateLatency *Summary      `json:"aggregate_latency"`
	PerTurnTTFT      []TurnSummary `json:"per_turn_ttft"`
	PerTurnLatency   []TurnSummary `json:"per_turn_latency"`

	Format      string    `json:"format"`
	Version     string    `json:"version"`
	URL         string    `json:"url"`
	Model       string    `json:"model"`
	Started     time.Time `json:"started"`
	Duration    Micros    `json:"duration_us"`
	Interrupted bool      `json:"interrupted"`
	Workload    Workload  `json:"workload"`
	Salt        string    `json:"salt"`

	PerTurnFirstOutput []TurnSummary  `json:"per_turn_first_output"`
	PerTurnITL         []TurnSummary  `json:"per_turn_itl"`
	AggregateITL       *Summary       `json:"aggregate_itl"`
	AggregateGaps      *Summary       `json:"aggregate_chunk_gaps"`
	GapsLeftOut        int            `json:"chunk_gaps_left_out"` // more than the client keeps
	SteadyTTFT         *Summary       `json:"steady_ttft"`
	Lag                *Summary       `json:"generator_lag"`
	Phases             map[string]int `json:"phases"`
	// FirstSecondShare is the share of all turns that were due in the first second: how
	// much of the tables is the start-up burst.
	FirstSecondShare float64        `json:"first_second_share"`
	Planned          int            `json:"planned_turns"`
	Dropped          int            `json:"dropped_turns"` // never sent: their conversation had failed or the run was interrupted
	Cancelled        int            `json:"cancelled_turns"`
	ClockErrors      int            `json:"clock_errors"` // turns left out because an interval was negative
	Failures         map[string]int `json:"failures"`
	Tokens           Tokens         `json:"tokens"`
	TurnTokens       []Tokens       `json:"per_turn_tokens"`
	CacheHit         *float64       `json:"cache_hit"`

	// Definitions say what the numbers are, so that a file explains itself.
	Definitions map[string]string `json:"definitions"`
	Records     []Record          `json:"raw_results"`
}

var definitions = map[string]string{
	"percentiles": "type 7: linear between order statistics of the raw values",
	"ttft":        "before the write to the first token of any kind, reasoning included",
	"first_output": "before the write to the first visible token; reasoning is not visible, " +
		"a tool call is",
	"itl":                  "(total latency - ttft) / (completion tokens - 1), one value a turn",
	"chunk_gaps":           "each pause between two chunks with output",
	"total_latency":        "before the write to the last token",
	"cache_hit":            "sum of cached tokens / sum of prompt tokens, of the answers that say cached tokens; turn 1 counts",
	"turn":                 "from 0",
	"loop":                 "closed: a turn is due when the one before has ended and its think time has passed",
	"phases":               "ramp: due while users were still arriving; drain: fewer than 95 % of the conversations open; steady: the others",
	"failed turns":         "end their conversation and are in no latency",
	"generator_lag":        "how much later than due a turn was sent; no part of ttft",
	"absent token counts":  "null: the endpoint did not say; never taken for 0",
	"cancelled, dropped":   "interrupted while running; planned and never sent",
	"aggregates and turns": "all phases; steady_ttft leaves out ramp and drain",
}

// Summarise computes everything that follows from the records, the workload and the
// counters that the client keeps.
func (r *Run) Summarise() {
	r.Format, r.Definitions = runFormat, definitions
	r.NumUsers, r.NumTurns = r.Workload.Users, r.Workload.Turns
	r.dropClockErrors()
	slices.SortFunc(r.Records, func(a, b Record) int {
		if a.User != b.User {
			return a.User - b.User
		}
		if a.Turn != b.Turn {
			return a.Turn - b.Turn
		}
		return a.Step - b.Step
	})
	r.Requests, r.Successful, r.Failed = len(r.Records), 0, 0
	r.Failures = map[string]int{}
	for i := range r.Records {
		if q := &r.Records[i]; q.OK {
			r.Successful++
		} else {
			r.Failed++
			r.Failures[q.Failure]++
		}
	}
	r.Planned = r.Workload.planned()
	r.Dropped = max(r.Planned-r.Requests-r.Cancelled-r.ClockErrors, 0)
	r.phases()

	r.AggregateTTFT = summarise(values(r.Records, ttft, nil))
	r.AggregateLatency = summarise(values(r.Records, e2e, nil))
	r.AggregateITL = summarise(values(r.Records, itl, nil))
	r.SteadyTTFT = summarise(values(r.Records, ttft, func(q *Record) bool { return q.Phase == phaseSteady }))
	r.Lag = summarise(values(r.Records, lag, nil))
	r.PerTurnTTFT = perTurn(r.Records, r.NumTurns, ttft)
	r.PerTurnLatency = perTurn(r.Records, r.NumTurns, e2e)
	r.PerTurnFirstOutput = perTurn(r.Records, r.NumTurns, firstOutput)
	r.PerTurnITL = perTurn(r.Records, r.NumTurns, itl)
	var gaps []float64
	for i := range r.Records {
		for _, g := range r.Records[i].Gaps {
			gaps = append(gaps, float64(g))
		}
	}
	if len(gaps) > 0 || r.AggregateGaps == nil { // gaps are in no file: keep a read summary
		r.AggregateGaps = summarise(gaps)
	}

	r.Tokens = sumTokens(r.Records, nil)
	r.TurnTokens = r.TurnTokens[:0]
	for turn := range r.NumTurns {
		r.TurnTokens = append(r.TurnTokens, sumTokens(r.Records, atTurn(turn)))
	}
	r.CacheHit = nil
	if hit, ok := r.Tokens.Hit(); ok {
		r.CacheHit = &hit
	}
}

// dropClockErrors leaves out turns with a negative interval: a clock that was set back
// must not turn into a fast answer.
func (r *Run) dropClockErrors() {
	n := len(r.Records)
	r.Records = slices.DeleteFunc(r.Records, func(q Record) bool {
		return q.TTFT < 0 || q.E2E < 0 || q.Headers < 0 || q.Lag < 0 || q.Planned < 0 || q.End < 0 ||
			q.ITL != nil && *q.ITL < 0
	})
	r.ClockErrors += n - len(r.Records)
}

// phases marks each record with its phase.
func (r *Run) phases() {
	ends := map[int]Micros{}
	for i := range r.Records {
		q := &r.Records[i]
		ends[q.User] = max(ends[q.User], q.End)
	}
	sorted := make([]Micros, 0, len(ends))
	for _, e := range ends {
		sorted = append(sorted, e)
	}
	slices.Sort(sorted)
	drain := Micros(1<<63 - 1)
	if closed := len(sorted) / 20; closed < len(sorted) {
		drain = sorted[closed] // when the conversation ends that leaves fewer than 95 % open
	}
	r.Phases = map[string]int{}
	early := 0
	for i := range r.Records {
		q := &r.Records[i]
		switch {
		case q.Planned < r.Workload.Stagger:
			q.Phase = phaseRamp
		case q.Planned >= drain:
			q.Phase = phaseDrain
		default:
			q.Phase = phaseSteady
		}
		r.Phases[q.Phase]++
		if q.Planned < Micros(time.Second) {
			early++
		}
	}
	r.FirstSecondShare = 0
	if len(r.Records) > 0 {
		r.FirstSecondShare = float64(early) / float64(len(r.Records))
	}
}

func perTurn(records []Record, turns int, m measure) []TurnSummary {
	out := []TurnSummary{}
	for turn := range turns {
		if s := summarise(values(records, m, atTurn(turn))); s != nil {
			out = append(out, TurnSummary{Turn: turn, Summary: *s})
		}
	}
	return out
}

func sumTokens(records []Record, keep func(*Record) bool) Tokens {
	var t Tokens
	for i := range records {
		q := &records[i]
		if !q.OK || keep != nil && !keep(q) {
			continue
		}
		t.Answers++
		if q.PromptTokens != nil {
			t.Usage++
			t.Prompt += *q.PromptTokens
		}
		t.Completion += q.outputTokens()
		if q.ReasoningTokens != nil {
			t.ReasoningAnswers++
			t.Reasoning += *q.ReasoningTokens
		}
		if q.CachedTokens != nil && q.PromptTokens != nil {
			t.CachedAnswers++
			t.Cached += *q.CachedTokens
			t.CachedPrompt += *q.PromptTokens
		}
	}
	return t
}

// WriteJSON writes r as a file.
func (r *Run) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// ReadRun reads a file that WriteJSON wrote and computes its summaries again.
func ReadRun(from io.Reader) (*Run, error) {
	var r Run
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		return nil, fmt.Errorf("not JSON of warmroute bench: %w", err)
	}
	switch {
	case r.Format == abFormat:
		return nil, fmt.Errorf("it is a file of warmroute bench ab, which holds its own comparison; compare takes two files of warmroute bench --output")
	case r.Format == "":
		return nil, fmt.Errorf("it names no format: not a file of warmroute bench --output (files of Dynamo's multiturn_bench hold no workload plan, so nothing shows that two of them asked the same)")
	case r.Format != runFormat:
		return nil, fmt.Errorf("its format is %q and this version reads %q: use the version that wrote it", r.Format, runFormat)
	}
	clock := r.ClockErrors
	r.Summarise()
	r.ClockErrors = max(r.ClockErrors, clock)
	return &r, nil
}
