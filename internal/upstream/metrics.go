package upstream

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the fleet's counters. A worker's series are deleted with it.
type metrics struct {
	healthy     *prometheus.GaugeVec
	conns       *prometheus.GaugeVec
	dials       *prometheus.CounterVec
	resends     *prometheus.CounterVec
	probeErrors *prometheus.CounterVec
	ejections   *prometheus.CounterVec
	breaker     *prometheus.GaugeVec
	pauses      *prometheus.CounterVec
	tokenize    *prometheus.CounterVec
	unjoined    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	worker := []string{"worker"}
	m := &metrics{
		healthy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmroute_upstream_healthy", Help: "1 while the worker takes requests, else 0."}, worker),
		conns: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmroute_upstream_connections", Help: "Open connections to the worker."}, worker),
		dials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_upstream_connects_total", Help: "Connections made to the worker, by outcome (ok, error)."}, []string{"worker", "outcome"}),
		resends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_upstream_resends_total", Help: "Requests sent again because the worker had closed an idle connection."}, worker),
		probeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_upstream_probe_errors_total", Help: "Health checks and probes that failed."}, worker),
		ejections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_upstream_ejections_total", Help: "Times that the worker's breaker opened, by reason (failures_in_row, failure_share, stuck)."}, []string{"worker", "reason"}),
		breaker: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmroute_upstream_breaker_state", Help: "The worker's breaker: 0 is closed, 1 is being tried out, 2 is open: requests go elsewhere if others are there."}, worker),
		pauses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_upstream_pauses_total", Help: "Refusals (429, 503) with a Retry-After, which keeps new requests away."}, worker),
		tokenize: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_upstream_tokenize_total", Help: "Prompts sent to the engine's tokenizer, by outcome (ok, unsupported, error)."}, []string{"worker", "outcome"}),
		unjoined: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "warmroute_upstream_unjoined_feeds", Help: "Announced workers that are neither configured nor allowed."}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.healthy, m.conns, m.dials, m.resends, m.probeErrors, m.ejections, m.breaker, m.pauses, m.tokenize, m.unjoined} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) dialed(worker string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.dials.WithLabelValues(worker, outcome).Inc()
}

func (m *metrics) resent(worker string) { m.resends.WithLabelValues(worker).Inc() }

func (m *metrics) paused(worker string) { m.pauses.WithLabelValues(worker).Inc() }

func (m *metrics) setHealthy(worker string, healthy bool) {
	v := 0.0
	if healthy {
		v = 1
	}
	m.healthy.WithLabelValues(worker).Set(v)
}

// drop deletes the series of a worker that left.
func (m *metrics) drop(worker string) {
	l := prometheus.Labels{"worker": worker}
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.healthy, m.conns, m.dials, m.resends, m.probeErrors, m.ejections, m.breaker, m.pauses, m.tokenize,
	} {
		v.DeletePartialMatch(l)
	}
}
