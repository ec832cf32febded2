package router

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the counters of one Router. Labels are bounded: modes and reasons are
// fixed words, and per-worker gauges are collected from the fleet of the moment.
type metrics struct {
	decisions *prometheus.CounterVec
	refusals  *prometheus.CounterVec

	predictedTTFT prometheus.Histogram
	actualTTFT    prometheus.Histogram
	errorTTFT     prometheus.Histogram

	promptTokens    prometheus.Counter
	predictedCached *prometheus.CounterVec
	overlapBlocks   prometheus.Histogram

	reportedPrompt    prometheus.Counter
	reportedCached    prometheus.Counter
	reportedPredicted prometheus.Counter
	overlapError      prometheus.Histogram
	reuseLost         *prometheus.CounterVec
	staleHits         prometheus.Counter

	wait     *prometheus.HistogramVec
	rejected *prometheus.CounterVec
}

func newMetrics(r *Router, reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "warmroute", Subsystem: "router", Name: name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "warmroute", Subsystem: "router", Name: name, Help: help, Buckets: buckets,
		})
	}
	ttft := []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &metrics{
		decisions: prometheus.NewCounterVec(counter("decisions_total",
			"Requests routed, by mode and by what decided."), []string{"mode", "reason"}),
		refusals: prometheus.NewCounterVec(counter("refusals_total",
			"Requests that found no worker: saturated, no_workers or unknown_model."), []string{"reason"}),
		predictedTTFT: histogram("predicted_ttft_seconds",
			"Time to first token that the router predicted for streamed requests.", ttft),
		actualTTFT: histogram("actual_ttft_seconds",
			"Time from routing to the first token of streamed requests.", ttft),
		errorTTFT: histogram("ttft_error_seconds",
			"Actual minus predicted time to first token.",
			[]float64{-10, -2.5, -1, -.5, -.25, -.1, -.05, -.01, .01, .05, .1, .25, .5, 1, 2.5, 10}),
		promptTokens: prometheus.NewCounter(counter("prompt_tokens_total",
			"Prompt tokens of routed requests.")),
		predictedCached: prometheus.NewCounterVec(counter("predicted_cached_tokens_total",
			"Prompt tokens predicted to be cached on the chosen worker, by what told: exact, approximate or predicted."), []string{"source"}),
		overlapBlocks: histogram("overlap_blocks",
			"Blocks of a prompt predicted to be held by the chosen worker.",
			append([]float64{0}, prometheus.ExponentialBuckets(1, 4, 8)...)),
		reportedPrompt: prometheus.NewCounter(counter("reported_prompt_tokens_total",
			"Prompt tokens of requests whose engine reported its cached tokens.")),
		reportedCached: prometheus.NewCounter(counter("reported_cached_tokens_total",
			"Cached prompt tokens that engines reported.")),
		reportedPredicted: prometheus.NewCounter(counter("reported_predicted_cached_tokens_total",
			"Cached prompt tokens predicted for the requests whose engine reported them.")),
		overlapError: histogram("overlap_error_tokens",
			"Predicted minus engine-reported cached tokens of a request.",
			[]float64{-16384, -4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096, 16384}),
		reuseLost: prometheus.NewCounterVec(counter("reuse_lost_tokens_total",
			"Prompt tokens of later turns that were computed before and are again: evicted there, moved to another worker, or of a conversation never seen by this proxy."), []string{"reason"}),
		staleHits: prometheus.NewCounter(counter("stale_hits_total",
			"Times a worker reported fewer cached tokens than its events promised three times in a row.")),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "warmroute", Subsystem: "queue", Name: "wait_seconds",
			Help:    "Time that routed requests waited in the queue, by class; those that did not wait are not counted.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"class"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "warmroute", Subsystem: "queue", Name: "rejected_total",
			Help: "Requests that the queue refused: full (max_queue), or past max_queue_delay without a slot (slots) or without room for a new conversation (kv).",
		}, []string{"reason"}),
	}
	if reg != nil {
		reg.MustRegister(m.decisions, m.refusals, m.predictedTTFT, m.actualTTFT, m.errorTTFT,
			m.promptTokens, m.predictedCached, m.overlapBlocks, m.reportedPrompt, m.reportedCached,
			m.reportedPredicted, m.overlapError, m.reuseLost, m.staleHits, m.wait, m.rejected, &collector{r})
	}
	return m
}

func (m *metrics) refuse(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// waited counts a request that came through the queue.
func (m *metrics) waited(c class, seconds float64) {
	m.wait.WithLabelValues(classNames[c]).Observe(seconds)
}

func (m *metrics) staleHit() { m.staleHits.Inc() }

// routed counts one decision.
func (m *metrics) routed(q *query, d *Decision) {
	m.decisions.WithLabelValues(string(d.Mode), d.Reason).Inc()
	m.promptTokens.Add(float64(d.PromptTokens))
	m.overlapBlocks.Observe(float64(d.OverlapBlocks))
	if d.OverlapFrom != "" {
		m.predictedCached.WithLabelValues(d.OverlapFrom).Add(float64(d.OverlapTokens))
	}
	m.lost(q, d)
}

// lost counts the tokens of a later turn that its conversation had computed before
// and that the chosen worker does not hold.
func (m *metrics) lost(q *query, d *Decision) {
	got := float64(d.OverlapTokens)
	if !q.returning {
		if !q.req.FirstTurn {
			m.reuseLost.WithLabelValues("never_seen").Add(max(float64(d.PromptTokens)-got, 0))
		}
		return
	}
	if q.talk.ambiguous {
		return
	}
	block := 1
	there := got
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Worker == q.talk.rank.ID && c.Rank == q.talk.rank.Rank {
			there = max(there, float64(c.OverlapTokens))
			if c.OverlapBlocks > 0 {
				block = max(c.OverlapTokens/c.OverlapBlocks, 1)
			}
		}
	}
	had := q.talk.prompt - float64(int(q.talk.prompt)%block) // whole blocks only
	m.reuseLost.WithLabelValues("moved").Add(min(there, had) - min(got, had))
	m.reuseLost.WithLabelValues("evicted").Add(had - min(there, had))
}

// firstToken counts the first token of a streamed request.
func (m *metrics) firstToken(predicted, actual float64) {
	m.predictedTTFT.Observe(predicted)
	m.actualTTFT.Observe(actual)
	m.errorTTFT.Observe(actual - predicted)
}

// done counts what the engine reported of a request.
func (m *metrics) done(l *Lease, o Outcome) {
	if o.CachedTokens < 0 {
		return
	}
	prompt := o.PromptTokens
	if prompt < 0 {
		prompt = int(l.prompt)
	}
	m.reportedPrompt.Add(float64(prompt))
	m.reportedCached.Add(float64(o.CachedTokens))
	m.reportedPredicted.Add(float64(l.decision.OverlapTokens))
	m.overlapError.Observe(float64(l.decision.OverlapTokens - o.CachedTokens))
}

// collector reads the gauges of the fleet when they are scraped.
type collector struct{ r *Router }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("warmroute_router_"+name, help, labels, nil)
}

var (
	peersDesc     = desc("peer_inflight", "Requests in flight that other proxies have booked.", "worker", "rank")
	untoldDesc    = desc("booking_changes_dropped_total", "Changes of own bookings that waited too long to be told; the next full state tells them.")
	inflightDesc  = desc("inflight", "Requests in flight of this proxy.", "worker", "rank")
	runningDesc   = desc("running", "Requests of this proxy past their first token.", "worker", "rank")
	backlogDesc   = desc("backlog_tokens", "Booked prompt tokens that wait for their first token, those of other proxies too.", "worker", "rank")
	kvDesc        = desc("kv_tokens", "KV tokens of requests in flight, those of other proxies too, shared prefixes once.", "worker", "rank")
	rateDesc      = desc("prefill_tokens_per_second", "Measured prefill rate R.", "worker", "rank")
	usableDesc    = desc("usable", "1 where the worker is healthy, not draining and not ejected.", "worker", "rank")
	itlDesc       = desc("itl_coefficient", "Coefficients of ITL = a + b*n + c*KV in seconds.", "model", "coefficient")
	interceptDesc = desc("ttft_intercept_seconds", "Time to first token of an idle worker beyond its prefill.", "model")
	tauDesc       = desc("age_scale_seconds", "Age scale of eviction: 75th percentile of return gaps.")
	expectDesc    = desc("expectations", "Tenant and model pairs with learned output and turns.")
	forgotDesc    = desc("expectations_forgotten_total", "Learned pairs dropped for room.")
	talksDesc     = desc("conversations", "Conversations remembered.")
	talksGoneDesc = desc("conversations_forgotten_total", "Conversations dropped for room.")

	depthDesc    = prometheus.NewDesc("warmroute_queue_depth", "Requests that wait for a worker.", []string{"class"}, nil)
	liveDesc     = desc("live_kv_tokens", "KV tokens of requests in flight and of conversations that are expected back.", "model")
	capacityDesc = desc("kv_capacity_tokens", "KV tokens that fit in the usable workers; absent where one does not tell.", "model")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{inflightDesc, peersDesc, untoldDesc, runningDesc, backlogDesc, kvDesc, rateDesc, usableDesc,
		itlDesc, interceptDesc, tauDesc, expectDesc, forgotDesc, talksDesc, talksGoneDesc, depthDesc, liveDesc, capacityDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		for i := range labels {
			labels[i] = strings.ToValidUTF8(labels[i], "?")
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range c.r.Status() {
		name, rank := s.Worker, strconv.Itoa(s.Rank)
		gauge(inflightDesc, float64(s.Inflight), name, rank)
		gauge(runningDesc, float64(s.Running), name, rank)
		if s.Peers != nil {
			gauge(peersDesc, float64(s.Peers.Inflight), name, rank)
		}
		gauge(backlogDesc, float64(s.BacklogTokens), name, rank)
		gauge(kvDesc, float64(s.HeldTokens), name, rank)
		gauge(rateDesc, s.Rate, name, rank)
		usable := 0.0
		if s.Healthy && !s.Draining && s.EjectionLevel == 0 {
			usable = 1
		}
		gauge(usableDesc, usable, name, rank)
	}
	for _, m := range c.r.measured() {
		gauge(itlDesc, m.ITL.A, m.name, "a")
		gauge(itlDesc, m.ITL.B, m.name, "b")
		gauge(itlDesc, m.ITL.C, m.name, "c")
		gauge(interceptDesc, m.intercept, m.name)
	}
	ch <- prometheus.MustNewConstMetric(untoldDesc, prometheus.CounterValue, float64(c.r.untold()))
	entries, forgotten := c.r.expect.stats()
	gauge(expectDesc, float64(entries))
	ch <- prometheus.MustNewConstMetric(forgotDesc, prometheus.CounterValue, float64(forgotten))
	talks, tau, gone := c.r.talks.stats()
	gauge(talksDesc, float64(talks))
	gauge(tauDesc, tau)
	ch <- prometheus.MustNewConstMetric(talksGoneDesc, prometheus.CounterValue, float64(gone))
	q := c.r.Queue()
	for i, name := range classNames {
		gauge(depthDesc, float64(q.depth[i]), name)
	}
	for _, p := range q.Pools {
		gauge(liveDesc, float64(p.LiveTokens), p.Model)
		gauge(capacityDesc, float64(p.CapacityTokens), p.Model)
	}
}
