package prefill

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	maxRecent = 64 // warm-ups shown
	maxShown  = 64 // scopes shown
)

// Record is one warm-up that was sent. It holds nothing of a prompt.
type Record struct {
	Time       time.Time     `json:"time"`
	Model      string        `json:"model"`
	Trigger    Trigger       `json:"trigger"`
	Worker     kv.WorkerRank `json:"worker"`
	LiveTokens int           `json:"live_tokens"` // that the worker held
	GainTokens int           `json:"gain_tokens"` // to be computed
	Seconds    float64       `json:"seconds"`
	LiveFrom   string        `json:"live_from,omitempty"`
	Form       string        `json:"form,omitempty"` // tokens or chat
	Outcome    string        `json:"outcome"`        // warmed, cancelled or failed; or prefix_false, told by the next turn
	Reason     string        `json:"reason,omitempty"`

	// Of prefix_false: the tokens that were to be the next prompt's start, and the index
	// of the first that differs, -1 where only blocks were compared. Reason says in which
	// part of the prompt that is.
	PrefixTokens int  `json:"prefix_tokens,omitempty"`
	DiffersAt    *int `json:"differs_at,omitempty"`
}

// Snapshot is what /debug/prefill shows.
type Snapshot struct {
	Default       Mode    `json:"default"`
	Holdout       float64 `json:"speculation_holdout"`
	Conversations int     `json:"conversations"` // that wait for their next turn
	Queue         int     `json:"queue"`         // warm-ups that wait or are under way
	HeldBytes     int64   `json:"held_bytes"`

	Heads      []Head              `json:"heads,omitempty"`               // shared prefixes, the hottest first
	Joining    map[string]float64  `json:"joining_seconds,omitempty"`     // workers that are warmed before they take requests, and since when
	Kept       int                 `json:"kept,omitempty"`                // conversations that rewarm looks after
	BudgetLeft map[Trigger]float64 `json:"budget_left_seconds,omitempty"` // of join and rewarm

	// Headline is the comparison of all turns that chance chose to warm or to hold out.
	Headline Comparison `json:"headline"`

	// Tokens of warm-ups by what became of them; sent is the sum of the others.
	Tokens map[string]int `json:"tokens"`

	Scopes   []Scope            `json:"scopes"`           // the busiest first
	Pauses   map[string]float64 `json:"paused,omitempty"` // seconds to go, by worker
	Recent   []Record           `json:"recent"`           // newest first
	Scoped   int                `json:"scopes_known"`
	Shutdown bool               `json:"shutdown,omitempty"`
}

// Comparison is the TTFT of next turns with and without a warm-up. Turns count where
// they came back and streamed; their groups were chosen when the warm-up was due, so
// one that was cancelled counts as warmed.
type Comparison struct {
	Held         int      `json:"held_out_turns"`
	Warmed       int      `json:"warmed_turns"`
	HeldTTFT     float64  `json:"held_out_ttft_seconds"` // mean
	WarmedTTFT   float64  `json:"warmed_ttft_seconds"`
	SavedSeconds Interval `json:"ttft_saved_seconds"`
	Ratio        Interval `json:"ttft_ratio"` // of geometric means, warmed to held out
}

// Scope is what is learned of one tenant's use of one model.
type Scope struct {
	Key         string  `json:"key,omitempty"`
	Model       string  `json:"model"`
	Trigger     Trigger `json:"trigger"`
	Probability float64 `json:"p_return"` // that a next turn comes
	// Expect is that, of a warm-up like the last ones sent at the end of the turn, and
	// what it would save.
	Expect Expectation `json:"expect"`
	GapP50 float64     `json:"return_gap_p50_seconds"`
	GapP90 float64     `json:"return_gap_p90_seconds"`
	Closed bool        `json:"closed"` // warming was measured not to pay
	Spent  float64     `json:"engine_seconds_spent"`
	Comparison
}

// Expectation is what the learning gate expects of a warm-up.
type Expectation struct {
	Takes     float64  `json:"warm_up_seconds"`
	Residency *float64 `json:"residency_seconds"` // null: nothing must be evicted
	Resident  float64  `json:"p_before_eviction"` // that the next turn comes, and so early
	InTime    float64  `json:"p_after_warm_up"`   // and not before the warm-up is done
	Saved     float64  `json:"saved_seconds"`
}

// expectationLocked looks ahead from the end of a turn of scope s.
func (p *Prefiller) expectationLocked(s scope, takes float64) Expectation {
	f := p.mu.learn.forecast(s, 0, takes, p.mu.stay)
	e := Expectation{Takes: takes, Resident: f.Resident, InTime: f.InTime, Saved: f.Saved}
	if stay := p.mu.stay; !math.IsInf(stay, 1) {
		e.Residency = &stay
	}
	return e
}

// Head is one shared prefix.
type Head struct {
	Model  string    `json:"model"`
	LoRA   string    `json:"lora,omitempty"`
	Salted bool      `json:"salted,omitempty"`
	Tokens int       `json:"tokens"`
	Turns  int       `json:"first_turns"`        // that began with it
	Recent float64   `json:"first_turns_recent"` // the same, decayed over minutes
	Last   time.Time `json:"last_seen"`
}

// copiesLocked fills in what is known of the triggers that answer no turn.
func (s *Snapshot) copiesLocked(p *Prefiller, now time.Time) {
	for _, h := range p.mu.heads.hottest(now) {
		if len(s.Heads) == maxShown {
			break
		}
		s.Heads = append(s.Heads, Head{
			Model: h.key.model, LoRA: h.ns.LoRA, Salted: h.ns.Salt != "", Tokens: len(h.tokens), Turns: h.turns, Recent: h.weight(now), Last: h.last,
		})
	}
	for worker, began := range p.mu.joining {
		if s.Joining == nil {
			s.Joining = map[string]float64{}
		}
		s.Joining[worker] = now.Sub(began).Seconds()
	}
	s.Kept = p.mu.rewarming.order.Len()
	for t, on := range map[Trigger]bool{TriggerJoin: p.cfg.Join, TriggerRewarm: p.cfg.Rewarm} {
		if on {
			if s.BudgetLeft == nil {
				s.BudgetLeft = map[Trigger]float64{}
			}
			s.BudgetLeft[t] = max(p.mu.budget.room(t), 0)
		}
	}
}

// Debug returns the state of the moment.
func (p *Prefiller) Debug() Snapshot {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.mu.learn
	s := Snapshot{
		Default: cmp.Or(p.cfg.Default, ModeOff), Holdout: max(p.cfg.Holdout, 0),
		Conversations: len(p.mu.table.byKey), Queue: len(p.mu.jobs), HeldBytes: p.held.Load(),
		Headline: l.total.comparison(), Scoped: len(l.scopes), Shutdown: p.mu.closed,
	}
	s.Tokens = maps.Clone(p.mu.tokens)
	s.Tokens["open"] = p.mu.tokensOpen
	s.copiesLocked(p, now)
	for of, e := range l.scopes {
		gaps := l.gaps(of)
		s.Scopes = append(s.Scopes, Scope{
			Key: of.key, Model: of.model, Trigger: of.trigger, Probability: l.probability(of),
			Expect: p.expectationLocked(of, e.takes), GapP50: gaps.quantile(.5), GapP90: gaps.quantile(.9),
			Closed: p.cfg.Holdout > 0 && e.closed(), Spent: e.spent, Comparison: e.comparison(),
		})
	}
	slices.SortFunc(s.Scopes, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(b.Held+b.Warmed, a.Held+a.Warmed), cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Model, b.Model), cmp.Compare(a.Trigger, b.Trigger))
	})
	s.Scopes = s.Scopes[:min(len(s.Scopes), maxShown)]
	for worker, until := range p.mu.pauses {
		if d := until.Sub(now); d > 0 {
			if s.Pauses == nil {
				s.Pauses = map[string]float64{}
			}
			s.Pauses[worker] = d.Seconds()
		}
	}
	for i := range min(p.mu.next, maxRecent) {
		s.Recent = append(s.Recent, p.mu.recent[(p.mu.next-1-i)%maxRecent])
	}
	return s
}

func (e *experiment) comparison() Comparison {
	c := Comparison{Held: e.held.turns, Warmed: e.warmed.turns, SavedSeconds: e.saving(), Ratio: e.ratio()}
	if e.held.w > 0 {
		c.HeldTTFT = e.held.sum / e.held.w
	}
	if e.warmed.w > 0 {
		c.WarmedTTFT = e.warmed.sum / e.warmed.w
	}
	return c
}

// recordLocked keeps what became of a warm-up that was sent.
func (p *Prefiller) recordLocked(j *job, outcome, reason string) {
	w := &j.c.warm
	p.noteLocked(Record{
		Time: j.sent, Model: j.c.scope.model, Trigger: j.trigger, Worker: w.worker, LiveTokens: w.live, GainTokens: w.gain,
		Seconds: time.Since(j.sent).Seconds(), Outcome: outcome, Reason: reason, LiveFrom: w.from, Form: w.form,
	})
}

// recordFalseLocked keeps where a next prompt left what was warmed for it.
func (p *Prefiller) recordFalseLocked(c *conversation, r *truth) {
	w := &c.warm
	p.noteLocked(Record{
		Time: time.Now(), Model: c.scope.model, Trigger: c.scope.trigger, Worker: w.worker, LiveTokens: w.live, GainTokens: w.gain,
		LiveFrom: w.from, Form: w.form, Outcome: "prefix_false", Reason: r.where, PrefixTokens: c.expect.prefix, DiffersAt: &r.at,
	})
}

func (p *Prefiller) noteLocked(r Record) {
	p.mu.recent[p.mu.next%maxRecent] = r
	p.mu.next++
}
