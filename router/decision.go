package router

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Decision is one choice and its reasons. It holds no prompt content.
type Decision struct {
	ID           string    `json:"id"` // "" of a Preview
	Time         time.Time `json:"time"`
	Model        string    `json:"model"`
	Mode         Mode      `json:"mode"`
	Worker       string    `json:"worker"`
	Rank         int       `json:"rank"`
	Reason       string    `json:"reason"`
	PromptSource string    `json:"prompt_source"`
	SourceReason string    `json:"prompt_source_reason,omitempty"` // why the source is not better
	PromptTokens int       `json:"prompt_tokens"`
	FirstTurn    bool      `json:"first_turn"`
	Waited       float64   `json:"waited_seconds,omitempty"` // in the queue
	Waits        bool      `json:"waits,omitempty"`          // of a Preview: a first turn would wait for KV room
	Speculative  bool      `json:"speculative,omitempty"`    // a warm-up, not a request

	ExpectedOutputTokens float64 `json:"expected_output_tokens"` // L
	ExpectedTurns        float64 `json:"expected_turns"`         // F
	AgeScale             float64 `json:"age_scale_seconds"`      // τ

	OverlapBlocks int         `json:"overlap_blocks"`
	OverlapTokens int         `json:"overlap_tokens"`
	OverlapFrom   string      `json:"overlap_from,omitempty"` // exact, approximate, predicted
	PredictedTTFT float64     `json:"predicted_ttft_seconds"`
	Candidates    []Candidate `json:"candidates"`
	Copy          *Copy       `json:"copy,omitempty"` // what rent would pay for

	chosen int
}

// Candidate is one row of the cost table. Times are seconds.
type Candidate struct {
	Worker        string  `json:"worker"`
	Rank          int     `json:"rank"`
	Skipped       string  `json:"skipped,omitempty"` // why it was no candidate
	Coverage      string  `json:"coverage"`
	OverlapBlocks int     `json:"overlap_blocks"`
	OverlapTokens int     `json:"overlap_tokens"`
	OverlapFrom   string  `json:"overlap_from,omitempty"`
	BacklogTokens int     `json:"backlog_tokens"`
	Inflight      int     `json:"inflight"` // of all proxies that are heard
	KVTokens      int     `json:"kv_tokens"`
	Rate          float64 `json:"prefill_tokens_per_second"`
	Queue         float64 `json:"queue_seconds"`
	Slot          float64 `json:"slot_seconds"`
	Prefill       float64 `json:"prefill_seconds"`
	Decode        float64 `json:"decode_seconds"`
	Stall         float64 `json:"stall_seconds"`
	Evict         float64 `json:"evict_seconds"`
	Cost          float64 `json:"cost_seconds"`
	PredictedTTFT float64 `json:"predicted_ttft_seconds"`
}

// decide writes the choice of row best down.
func (q *query) decide(r *Router, best int, reason string) *Decision {
	s := q.overlaps
	b := &s.rows[best]
	d := &Decision{
		ID: strconv.FormatUint(r.mu.nextID, 10), Time: q.now, Model: q.req.Model, Mode: r.cfg.Mode,
		Worker: b.rank.name.ID, Rank: b.rank.name.Rank, Reason: reason,
		PromptTokens: int(s.tokens), FirstTurn: q.first, Speculative: q.req.Speculative,
		ExpectedOutputTokens: q.output, ExpectedTurns: q.turns, AgeScale: q.tau,
		OverlapBlocks: b.blocks, OverlapTokens: int(b.tokens), OverlapFrom: b.from,
		Candidates: make([]Candidate, len(s.rows)),
		chosen:     best,
	}
	d.PromptSource = "none"
	if s.prompt != nil {
		d.PromptSource, d.SourceReason = s.prompt.Source.String(), s.prompt.Reason
	}
	for i := range s.rows {
		w := &s.rows[i]
		k := w.rank
		d.Candidates[i] = Candidate{
			Worker: k.name.ID, Rank: k.name.Rank, Skipped: w.skip, Coverage: k.feed.State,
			OverlapBlocks: w.blocks, OverlapTokens: int(w.tokens), OverlapFrom: w.from,
			BacklogTokens: int(w.in.backlog), Inflight: k.inflight, KVTokens: int(w.in.kv), Rate: w.in.rate,
			Queue: w.terms.queue, Slot: w.terms.slot, Prefill: w.terms.prefill, Decode: w.terms.decode,
			Stall: w.terms.stall, Evict: w.terms.evict, Cost: w.total,
			PredictedTTFT: k.worker.base.intercept.seconds + w.terms.wait() + w.terms.prefill,
		}
	}
	d.PredictedTTFT = d.Candidates[best].PredictedTTFT
	return d
}

// Explain prints the cost table, one line a candidate, times in seconds.
func (d *Decision) Explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s of %d tokens", d.Mode, d.PromptSource, d.PromptTokens)
	if d.SourceReason != "" {
		fmt.Fprintf(&b, " (%s)", d.SourceReason)
	}
	fmt.Fprintf(&b, ", expects %.0f tokens", d.ExpectedOutputTokens)
	if d.FirstTurn {
		fmt.Fprintf(&b, " x %.3g turns", d.ExpectedTurns)
	}
	if d.Waited > 0 {
		fmt.Fprintf(&b, ", waited %.3f s", d.Waited)
	}
	if d.Waits {
		b.WriteString(", waits for room in the KV caches")
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		name := c.Worker
		if c.Rank > 0 {
			name += "/" + strconv.Itoa(c.Rank)
		}
		if c.Skipped != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, c.Skipped)
			continue
		}
		overlap := strconv.Itoa(c.OverlapBlocks)
		if c.OverlapFrom != "" && c.OverlapFrom != fromExact {
			overlap += " " + c.OverlapFrom
		}
		fmt.Fprintf(t, "%s\toverlap=%s\tqueue=%.3f\tslot=%.3f\tprefill=%.3f\tdecode=%.3f\tstall=%.3f\tevict=%.3f\tcost=%.3f",
			name, overlap, c.Queue, c.Slot, c.Prefill, c.Decode, c.Stall, c.Evict, c.Cost)
		if i == d.chosen {
			fmt.Fprintf(t, "\t<- %s", d.Reason)
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // a strings.Builder does not fail
	return strings.TrimRight(b.String(), "\n")
}

// Decisions returns the last decisions, newest first.
func (r *Router) Decisions() []*Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(r.mu.nextID, maxDecisions)
	out := make([]*Decision, 0, n)
	for i := range n {
		out = append(out, r.mu.recent[(r.mu.nextID-i)%maxDecisions])
	}
	return out
}
