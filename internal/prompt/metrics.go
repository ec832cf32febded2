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
}

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
	}
	if reg != nil {
		reg.MustRegister(m.sources, m.cacheBytes, m.cacheHits, m.cacheMisses, m.cacheEvicted, m.tokenize, m.ratiosRefused)
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
