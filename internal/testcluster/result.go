package testcluster

import (
	"slices"
	"time"

	"github.com/warmroute/warmroute/router"
)

// Latency sums up one latency of every request of a run, in seconds.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
}

// Request is what was measured about one request.
type Request struct {
	Conversation                             int // position in the workload
	Turn, Worker                             int
	Moved                                    bool // the turn before went to another worker
	Sent, TTFT, E2E                          time.Duration
	PromptTokens, CachedTokens, OutputTokens int
}

// Result is what one run measured. Reuse is Σ cached ÷ Σ prompt tokens as the engines
// report them.
type Result struct {
	Workload    string      `json:"workload"`
	Mode        router.Mode `json:"mode"`
	Concurrency int         `json:"concurrency"`
	Stagger     float64     `json:"stagger_seconds"`
	Seed        uint64      `json:"seed"`

	Requests    int     `json:"requests"`
	Seconds     float64 `json:"virtual_seconds"` // first send to last finish
	Reuse       float64 `json:"reuse"`
	RPS         float64 `json:"rps"`
	TTFT        Latency `json:"ttft_seconds"`
	TPOT        Latency `json:"tpot_seconds"` // (E2E − TTFT) ÷ (output tokens − 1)
	E2E         Latency `json:"e2e_seconds"`
	MaxOverMean float64 `json:"max_over_mean"` // requests of the busiest worker ÷ mean
	PerWorker   []int   `json:"requests_per_worker"`
	// InFlight is the time-weighted mean of requests in flight on each worker.
	InFlight []float64 `json:"in_flight"`
	// SameWorker is the share of later turns that went to the worker of the turn before.
	SameWorker float64 `json:"same_worker"`
	// LiveKV is the time-weighted mean of the tokens of all open conversations ÷ the
	// fleet's KV capacity, shared prefixes counted for each conversation.
	LiveKV float64 `json:"live_kv"`
	// Refused counts the conversations that ended because a request got no worker, Ended
	// the others.
	Refused int `json:"refused,omitempty"`
	Ended   int `json:"-"`

	Wall time.Duration `json:"-"` // real time the run took
	Rows []Request     `json:"-"` // in the order in which they finished
}

// recorder collects the measures of a run.
type recorder struct {
	rows     []Request
	live     []int // requests in flight, per worker
	inFlight []float64
	context  float64 // ∫ tokens of open conversations
	at       time.Duration
	first    time.Duration
	held     int // tokens of open conversations
	refusals int
	ended    int
}

func newRecorder(cfg Config) recorder {
	return recorder{live: make([]int, cfg.Workers), inFlight: make([]float64, cfg.Workers), first: -1}
}

// advance integrates up to now.
func (m *recorder) advance(now time.Duration) {
	d := (now - m.at).Seconds()
	for i, n := range m.live {
		m.inFlight[i] += float64(n) * d
	}
	m.context += float64(m.held) * d
	m.at = now
}

func (m *recorder) sent(now time.Duration, r *request) {
	if m.first < 0 {
		m.first, m.at = now, now
	}
	m.advance(now)
	m.live[r.worker.number]++
	t := r.session.conv.Turns[r.turn]
	grown := t.InputTokens + t.OutputTokens
	if r.turn == 0 {
		grown += len(r.session.conv.Prefix)
	}
	m.held += grown
}

func (m *recorder) finished(now time.Duration, r *request) {
	m.advance(now)
	m.live[r.worker.number]--
	s := r.session
	if r.turn == len(s.conv.Turns)-1 {
		m.held -= s.conv.tokens()
		m.ended++
	}
	m.rows = append(m.rows, Request{
		Conversation: s.number, Turn: r.turn, Worker: r.worker.number, Moved: s.last != nil && s.last != r.worker,
		Sent: r.sentAt, TTFT: r.firstToken - r.sentAt, E2E: now - r.sentAt,
		PromptTokens: len(r.seq.Tokens), CachedTokens: r.seq.CachedTokens, OutputTokens: r.seq.Generated,
	})
}

// refused ends a conversation: what its turns before have added is not live any more.
func (m *recorder) refused(now time.Duration, r *request) {
	m.advance(now)
	m.refusals++
	for i, t := range r.session.conv.Turns[:r.turn] {
		if i == 0 {
			m.held -= len(r.session.conv.Prefix)
		}
		m.held -= t.InputTokens + t.OutputTokens
	}
}

func (m *recorder) result(c *cluster, w Workload) *Result {
	r := &Result{
		Workload: w.Name, Mode: c.cfg.Mode, Concurrency: c.cfg.Concurrency, Stagger: c.cfg.Stagger.Seconds(), Seed: c.cfg.Seed,
		Refused: m.refusals, Ended: m.ended,
		Requests: len(m.rows), PerWorker: make([]int, c.cfg.Workers), InFlight: m.inFlight, Rows: m.rows,
	}
	var prompt, cached, later, same int
	var ttft, tpot, e2e []float64
	for i := range m.rows {
		q := &m.rows[i]
		prompt += q.PromptTokens
		cached += q.CachedTokens
		r.PerWorker[q.Worker]++
		if q.Turn > 0 {
			later++
			if !q.Moved {
				same++
			}
		}
		ttft = append(ttft, q.TTFT.Seconds())
		e2e = append(e2e, q.E2E.Seconds())
		if q.OutputTokens > 1 {
			tpot = append(tpot, (q.E2E-q.TTFT).Seconds()/float64(q.OutputTokens-1))
		}
	}
	r.Seconds = (m.at - max(m.first, 0)).Seconds()
	if r.Requests == 0 || r.Seconds == 0 {
		return r
	}
	r.Reuse = float64(cached) / float64(prompt)
	r.RPS = float64(r.Requests) / r.Seconds
	r.TTFT, r.TPOT, r.E2E = summarise(ttft), summarise(tpot), summarise(e2e)
	r.MaxOverMean = float64(slices.Max(r.PerWorker)) * float64(c.cfg.Workers) / float64(r.Requests)
	for i := range r.InFlight {
		r.InFlight[i] /= r.Seconds
	}
	if later > 0 {
		r.SameWorker = float64(same) / float64(later)
	}
	r.LiveKV = m.context / r.Seconds / float64(c.cfg.Workers*c.cfg.Engine.CapacityTokens)
	return r
}

// summarise sorts v in place. Percentiles are nearest rank.
func summarise(v []float64) Latency {
	if len(v) == 0 {
		return Latency{}
	}
	slices.Sort(v)
	var sum float64
	for _, x := range v {
		sum += x
	}
	at := func(p float64) float64 { return v[min(int(p*float64(len(v))), len(v)-1)] }
	return Latency{Mean: sum / float64(len(v)), P50: at(.50), P99: at(.99)}
}
