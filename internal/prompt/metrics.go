package prompt

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the package's own; reason and outcome come from fixed sets.
type metrics struct {
	sources       *prometheus.CounterVec
	cacheBytes    prometheus.Gauge
	cacheHits     prometheus.Counter
	cacheMisses   prometheus.Counter
	cacheEvicted  prometheus.Counter
	tokenize      *prometheus.HistogramVec
	ratiosRefused prometheus.Counter

	render, encode  prometheus.Histogram
	tokenized       *prometheus.CounterVec
	known           prometheus.Counter // of tokenized
	cached          prometheus.Counter
	fresh           prometheus.Counter
	segmentBytes    prometheus.Gauge
	memoBytes       prometheus.Gauge
	segmentsEvicted prometheus.Counter
	memoEvicted     prometheus.Counter
}

// modelMetrics are those of Models.
type modelMetrics struct {
	local  *prometheus.GaugeVec
	checks *prometheus.CounterVec
	load   prometheus.Histogram
}

func newModelMetrics(reg prometheus.Registerer) *modelMetrics {
	m := &modelMetrics{
		local: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmroute_tokenizer_local",
			Help: "Whether the prompts of a model are tokenised in this process (1) or by its engine or as text (0).",
		}, []string{"model"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_tokenizer_checks_total",
			Help: "Comparisons of local tokens with the engine's: equal, different or unasked.",
		}, []string{"outcome"}),
		load: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "warmroute_tokenizer_load_seconds",
			Help:    "Time to load a model's tokenizer and chat template.",
			Buckets: []float64{.05, .1, .2, .5, 1, 2, 5},
		}),
	}
	if reg != nil {
		reg.MustRegister(m.local, m.checks, m.load)
	}
	return m
}

// fast are the buckets of work in this process, in seconds.
var fast = []float64{.00005, .0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		sources: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_prefix_source_total",
			Help: "Prompts by the source of their identity and the reason why it was not a better one.",
		}, []string{"source", "reason"}),
		cacheBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "warmroute_prefix_cache_bytes",
			Help: "Bytes of token ids kept from engine tokenizers.",
		}),
		cacheHits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmroute_prefix_cache_hits_total",
			Help: "Prompts whose engine tokens were cached.",
		}),
		cacheMisses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmroute_prefix_cache_misses_total",
			Help: "Prompts whose engine tokens were not cached.",
		}),
		cacheEvicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmroute_prefix_cache_evictions_total",
			Help: "Prompts whose engine tokens were dropped, least recently used first, or were too large to keep.",
		}),
		tokenize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "warmroute_tokenize_seconds",
			Help:    "Time of one call of an engine's tokenizer, by outcome: ok, late (the request did not wait for it) or error.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
		}, []string{"outcome"}),
		ratiosRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmroute_prefix_models_refused_total",
			Help: "Samples of bytes per token not taken because too many models have one.",
		}),
		render: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "warmroute_render_seconds", Help: "Time to render a request's prompt by its chat template.", Buckets: fast,
		}),
		encode: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "warmroute_encode_seconds", Help: "Time to tokenise a rendered prompt in this process.", Buckets: fast,
		}),
		tokenized: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_tokenized_bytes_total",
			Help: "Bytes of rendered prompts by how their tokens were had: known (the prefix of an earlier prompt), cached (a segment seen elsewhere) or fresh.",
		}, []string{"path"}),
		segmentBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "warmroute_segment_cache_bytes",
			Help: "Bytes of the tokens kept of segments.",
		}),
		memoBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "warmroute_prompt_memo_bytes",
			Help: "Bytes of the prompts that are remembered for their next turn.",
		}),
		segmentsEvicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmroute_segment_cache_evictions_total",
			Help: "Segments whose tokens were dropped, least recently used first.",
		}),
		memoEvicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "warmroute_prompt_memo_evictions_total",
			Help: "Prompts that were forgotten, least recently used first, or were too large to keep.",
		}),
	}
	m.known, m.cached, m.fresh = m.tokenized.WithLabelValues("known"), m.tokenized.WithLabelValues("cached"), m.tokenized.WithLabelValues("fresh")
	if reg != nil {
		reg.MustRegister(m.sources, m.cacheBytes, m.cacheHits, m.cacheMisses, m.cacheEvicted, m.tokenize, m.ratiosRefused,
			m.render, m.encode, m.tokenized, m.segmentBytes, m.memoBytes, m.segmentsEvicted, m.memoEvicted)
	}
	return m
}

func (m *metrics) observeCall(took time.Duration, late bool, err error) {
	outcome := "ok"
	switch {
	case err != nil:
		outcome = "error"
	case late:
		outcome = "late"
	}
	m.tokenize.WithLabelValues(outcome).Observe(took.Seconds())
}
