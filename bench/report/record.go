package report

import (
	"strconv"
	"time"
)

// Micros is a duration that files hold as whole microseconds.
type Micros time.Duration

// MarshalJSON writes whole microseconds, rounded.
func (m Micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(m).Round(time.Microsecond).Microseconds(), 10), nil
}

// UnmarshalJSON reads microseconds.
func (m *Micros) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	us, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return err
	}
	*m = Micros(us * float64(time.Microsecond))
	return nil
}

// Phases of a run, by when a turn was due.
const (
	phaseRamp   = "ramp"   // while users were still arriving
	phaseSteady = "steady" // at least 95 % of the conversations open
	phaseDrain  = "drain"  // conversations had begun to end
)

// Record is one turn that was sent. The first five fields are Dynamo's.
type Record struct {
	User int    `json:"user_id"`
	Turn int    `json:"turn"`             // from 0
	Step int    `json:"step,omitempty"`   // request within the turn, behind a tool's answer; 0: the user's message
	TTFT Micros `json:"ttft_us"`          // before the write to the first token of any kind
	E2E  Micros `json:"total_latency_us"` // before the write to the last token
	OK   bool   `json:"success"`

	Planned   Micros `json:"planned_us"`    // when it was due, from the run's start
	Lag       Micros `json:"lag_us"`        // how much later than that it was sent
	Think     Micros `json:"think_us"`      // pause after the previous turn
	Headers   Micros `json:"headers_us"`    // before the write to the response headers
	FirstByte Micros `json:"first_byte_us"` // before the write to the first byte of the body
	End       Micros `json:"end_us"`        // when the stream ended, from the run's start
	// FirstOutput is the first visible token; reasoning alone has none.
	FirstOutput *Micros `json:"first_output_us"`
	// ITL is (E2E − TTFT) / (completion tokens − 1); nil below two tokens.
	ITL   *Micros `json:"itl_us"`
	Phase string  `json:"phase"`

	// Tokens as the endpoint's usage says; nil where it does not.
	PromptTokens     *int `json:"prompt_tokens"`
	CachedTokens     *int `json:"cached_tokens"`
	CompletionTokens *int `json:"completion_tokens"`
	ReasoningTokens  *int `json:"reasoning_tokens"`
	// Deltas counts chunks with output, which stand in for completion tokens in ITL where
	// there is no usage.
	Deltas int    `json:"deltas"`
	Finish string `json:"finish_reason,omitempty"`
	// NoDone says that the stream ended without [DONE], after a finish_reason.
	NoDone bool `json:"no_done,omitempty"`

	Worker      string `json:"worker,omitempty"`      // X-Warmroute-Worker
	Speculation string `json:"speculation,omitempty"` // X-Warmroute-Speculation
	RequestID   string `json:"request_id,omitempty"`

	// Failure is the kind of failure, "" for none; Error is its message.
	Failure string `json:"failure,omitempty"`
	Error   string `json:"error,omitempty"`

	Gaps []Micros `json:"-"` // between chunks with output
}

// outputTokens returns the tokens generated, by usage or else by deltas.
func (r *Record) outputTokens() int {
	if r.CompletionTokens != nil {
		return *r.CompletionTokens
	}
	return r.Deltas
}

// Measures of a turn; ok is false where the turn has none.
type measure func(*Record) (d float64, ok bool)

func ttft(r *Record) (float64, bool) { return float64(r.TTFT), true }
func e2e(r *Record) (float64, bool)  { return float64(r.E2E), true }

func firstOutput(r *Record) (float64, bool) {
	if r.FirstOutput == nil {
		return 0, false
	}
	return float64(*r.FirstOutput), true
}

func itl(r *Record) (float64, bool) {
	if r.ITL == nil {
		return 0, false
	}
	return float64(*r.ITL), true
}

func lag(r *Record) (float64, bool) { return float64(r.Lag), true }

// values returns the measure of the answered turns that keep accepts. A turn is measured by
// the request with the user's message; those behind tools' answers are in no latency.
func values(records []Record, m measure, keep func(*Record) bool) []float64 {
	var out []float64
	for i := range records {
		r := &records[i]
		if !r.OK || r.Step > 0 || keep != nil && !keep(r) {
			continue
		}
		if v, ok := m(r); ok {
			out = append(out, v)
		}
	}
	return out
}

func later(r *Record) bool { return r.Turn >= 1 && r.Step == 0 }
func first(r *Record) bool { return r.Turn == 0 && r.Step == 0 }
func atTurn(n int) func(*Record) bool {
	return func(r *Record) bool { return r.Turn == n && r.Step == 0 }
}
