package proxy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/openai"
)

// metrics are the front's counters. Labels are bounded: endpoints are ours, codes are
// classes, keys are those of the configuration, and no label comes from a request.
type metrics struct {
	requests    *prometheus.CounterVec
	inflight    *prometheus.GaugeVec
	ttft        *prometheus.HistogramVec
	itl         *prometheus.HistogramVec
	e2e         *prometheus.HistogramVec
	bodyBytes   *prometheus.HistogramVec
	disconnects *prometheus.CounterVec
	retries     *prometheus.CounterVec
	noBudget    prometheus.Counter
	breaks      prometheus.Counter
	unread      prometheus.Counter
	promptTok   prometheus.Counter
	cachedTok   prometheus.Counter
	outputTok   prometheus.Counter
	noUsage     prometheus.Counter
	panics      prometheus.Counter
	badRequests prometheus.Counter

	authFailures prometheus.Counter
	keyRequests  *prometheus.CounterVec
	keyTokens    *prometheus.CounterVec
	keyRefusals  *prometheus.CounterVec

	conns        prometheus.Gauge
	refusedConns prometheus.Counter
	tlsFailures  prometheus.Counter
	heartbeats   prometheus.Counter

	endpoints [2]endpointMetrics // by openai.Kind
}

// endpointMetrics are the series of one endpoint, found once: every look-up by label costs
// a request some 0.2 µs.
type endpointMetrics struct {
	inflight                  prometheus.Gauge
	ttft, itl, e2e, bodyBytes prometheus.Observer
}

// secondsBuckets spans a proxy's own overhead and a long generation.
var secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 60, 150, 600}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	endpoint := []string{"endpoint"}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "warmroute_proxy_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "warmroute_proxy_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels []string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "warmroute_proxy_" + name, Help: help, Buckets: buckets}, labels)
	}
	m := &metrics{
		requests: counters("requests_total", "Requests by endpoint and class of their status; 499 is a client that left.", "endpoint", "code"),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmroute_proxy_inflight_requests", Help: "Requests that are being answered."}, endpoint),
		ttft:        histogram("ttft_seconds", "From the whole request read to the first token of a stream relayed.", secondsBuckets, endpoint),
		itl:         histogram("inter_token_latency_seconds", "Time between reads of a stream that brought tokens, per token.", []float64{.001, .0025, .005, .01, .015, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5}, endpoint),
		e2e:         histogram("request_duration_seconds", "From the whole request read to the answer's end.", secondsBuckets, endpoint),
		bodyBytes:   histogram("request_body_bytes", "Size of request bodies.", prometheus.ExponentialBuckets(256, 4, 10), endpoint),
		disconnects: counters("client_disconnects_total", "Clients that left before their answer was complete, by phase (before_first_byte, streaming).", "phase"),
		retries:     counters("retries_total", "Requests sent to another worker before the first byte, by reason (connect, no_response, status).", "reason"),
		noBudget:    counter("retry_budget_exhausted_total", "Retries that were not made because retries were too many: 20 % of the requests of 10 s, and 10 a second."),
		breaks:      counter("stream_breaks_total", "Answers that broke off because their worker did."),
		unread:      counter("unread_events_total", "Events of streams that were passed on but could not be read."),
		promptTok:   counter("prompt_tokens_total", "Prompt tokens that workers reported."),
		cachedTok:   counter("cached_tokens_total", "Of these, tokens that workers found in their cache."),
		outputTok:   counter("output_tokens_total", "Output tokens that workers reported."),
		noUsage:     counter("unreported_cache_total", "Answers whose usage did not say how many tokens were cached."),
		panics:      counter("panics_total", "Requests that hit a bug of the proxy."),
		badRequests: counter("malformed_requests_total", "Requests that could not be read as HTTP."),

		authFailures: counter("auth_failures_total", "Requests without a valid API key."),
		keyRequests:  counters("key_requests_total", "Requests by the name of their API key, those that its limits let in.", "key"),
		keyTokens:    counters("key_tokens_total", "Tokens that workers reported, by the name of the API key and kind (prompt, output); warm-ups do not count.", "key", "kind"),
		keyRefusals:  counters("key_refusals_total", "Requests refused by a limit of their API key (max_inflight, requests_per_minute, tokens_per_minute) or its list of models (models).", "key", "limit"),

		conns:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "warmroute_proxy_connections", Help: "Open connections of clients."}),
		refusedConns: counter("refused_connections_total", "Connections of clients above the limit."),
		tlsFailures:  counter("tls_handshake_failures_total", "TLS handshakes of clients that failed, also for want of a client certificate."),
		heartbeats:   counter("heartbeats_total", "Comments sent to clients while their stream was silent."),
	}
	for _, kind := range []openai.Kind{openai.Chat, openai.Completions} {
		name := kind.String()
		m.endpoints[kind] = endpointMetrics{
			inflight: m.inflight.WithLabelValues(name), ttft: m.ttft.WithLabelValues(name), itl: m.itl.WithLabelValues(name),
			e2e: m.e2e.WithLabelValues(name), bodyBytes: m.bodyBytes.WithLabelValues(name),
		}
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.inflight, m.ttft, m.itl, m.e2e, m.bodyBytes, m.disconnects,
		m.retries, m.noBudget, m.breaks, m.unread, m.promptTok, m.cachedTok, m.outputTok, m.noUsage, m.panics, m.badRequests,
		m.authFailures, m.keyRequests, m.keyTokens, m.keyRefusals, m.conns, m.refusedConns, m.tlsFailures,
		m.heartbeats} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// forget drops what was counted for a key that is gone.
func (m *metrics) forget(key string) {
	for _, v := range []*prometheus.CounterVec{m.keyRequests, m.keyTokens, m.keyRefusals} {
		v.DeletePartialMatch(prometheus.Labels{"key": key})
	}
}

// class returns "2xx" and the like; 499 and 429 are of their own.
func class(status int) string {
	switch {
	case status == statusClientGone:
		return "499"
	case status == 429:
		return "429"
	case status < 200:
		return "1xx"
	case status < 300:
		return "2xx"
	case status < 400:
		return "3xx"
	case status < 500:
		return "4xx"
	}
	return "5xx"
}
