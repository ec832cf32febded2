package events

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// relayMetrics are shared by all relays on one Registerer; each counts under its own
// worker.
type relayMetrics struct {
	batches, lost, incarnations, malformed, unknown  *prometheus.CounterVec
	mismatch, refused, orphansDropped, conflicts     *prometheus.CounterVec
	deltas, unpublished, snapshots, replays, ignored *prometheus.CounterVec
	stateSaves                                       *prometheus.CounterVec
	blocks, orphans, complete                        *prometheus.GaugeVec
	vecs                                             []interface{ DeletePartialMatch(prometheus.Labels) int }
}

func newRelayMetrics(reg prometheus.Registerer) *relayMetrics {
	m := new(relayMetrics)
	counter := func(name, help string) *prometheus.CounterVec {
		v := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "warmroute_events_" + name, Help: help}, []string{"worker", "rank"}))
		m.vecs = append(m.vecs, v)
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "warmroute_events_" + name, Help: help}, []string{"worker", "rank"}))
		m.vecs = append(m.vecs, v)
		return v
	}
	m.batches = counter("relay_batches_total", "Batches of KV events received from the engine.")
	m.lost = counter("relay_lost_batches_total", "Batches of the engine that were lost for good.")
	m.incarnations = counter("relay_incarnations_total", "Engine processes seen, or connections that may be one.")
	m.malformed = counter("relay_malformed_total", "Batches and events of the engine that could not be read.")
	m.unknown = counter("relay_unknown_total", "Events and fields of the engine with an unknown name.")
	m.mismatch = counter("block_size_mismatch_total", "Stored events of another block size than the rank's.")
	m.refused = counter("relay_refused_total", "Stored events that cannot be used: block size 0 or 1, repeated hashes, masked blocks.")
	m.orphansDropped = counter("relay_orphans_dropped_total", "Blocks with an unknown parent that were dropped over the bound.")
	m.conflicts = counter("relay_conflicts_total", "Engine hashes that were stored again for another prefix.")
	m.deltas = counter("relay_deltas_total", "Deltas numbered.")
	m.unpublished = counter("relay_unpublished_total", "Deltas that could not be published; consumers ask for them.")
	m.snapshots = counter("relay_snapshots_total", "States sent to consumers.")
	m.replays = counter("relay_replays_total", "Replays of deltas sent to consumers.")
	m.ignored = counter("relay_requests_dropped_total", "Requests for a state that were dropped: queue full, unreadable.")
	m.stateSaves = counter("relay_state_saves_total", "States written to state_dir.")
	m.blocks = gauge("relay_blocks", "Engine blocks known.")
	m.orphans = gauge("relay_orphans", "Blocks whose parent is unknown.")
	m.complete = gauge("relay_complete", "1 while every block of the rank is known.")
	return m
}

// forget ends the series of a worker whose relay has ended.
func (m *relayMetrics) forget(worker string) {
	for _, v := range m.vecs {
		v.DeletePartialMatch(prometheus.Labels{"worker": worker})
	}
}

// rankMetrics are a relay's metrics of one rank.
type rankMetrics struct {
	batches, lost, incarnations, malformed, unknown  prometheus.Counter
	mismatch, refused, orphansDropped, conflicts     prometheus.Counter
	deltas, unpublished, snapshots, replays, ignored prometheus.Counter
	stateSaves                                       prometheus.Counter
	blocks, orphans, complete                        prometheus.Gauge
}

func (m *relayMetrics) rank(worker string, rank int) rankMetrics {
	r := strconv.Itoa(rank)
	return rankMetrics{
		batches: m.batches.WithLabelValues(worker, r), lost: m.lost.WithLabelValues(worker, r),
		incarnations: m.incarnations.WithLabelValues(worker, r), malformed: m.malformed.WithLabelValues(worker, r),
		unknown: m.unknown.WithLabelValues(worker, r), mismatch: m.mismatch.WithLabelValues(worker, r),
		refused: m.refused.WithLabelValues(worker, r), orphansDropped: m.orphansDropped.WithLabelValues(worker, r),
		conflicts: m.conflicts.WithLabelValues(worker, r), deltas: m.deltas.WithLabelValues(worker, r),
		unpublished: m.unpublished.WithLabelValues(worker, r), snapshots: m.snapshots.WithLabelValues(worker, r),
		replays: m.replays.WithLabelValues(worker, r), ignored: m.ignored.WithLabelValues(worker, r),
		stateSaves: m.stateSaves.WithLabelValues(worker, r), blocks: m.blocks.WithLabelValues(worker, r),
		orphans: m.orphans.WithLabelValues(worker, r), complete: m.complete.WithLabelValues(worker, r),
	}
}

// translated adds what the translator counted since before.
func (m *rankMetrics) translated(before, now *TranslatorStats) {
	m.mismatch.Add(float64(now.SizeMismatch - before.SizeMismatch))
	m.refused.Add(float64(now.BadBlockSize + now.Malformed + now.Masked - before.BadBlockSize - before.Malformed - before.Masked))
	m.orphansDropped.Add(float64(now.OrphansDropped - before.OrphansDropped))
	m.conflicts.Add(float64(now.Conflicts - before.Conflicts))
	m.blocks.Set(float64(now.Blocks))
	m.orphans.Set(float64(now.Orphans))
}

// consumerMetrics are those of a proxy's consumer.
type consumerMetrics struct {
	connected                       prometheus.Gauge
	complete                        *prometheus.GaugeVec
	gaps, incarnations              *prometheus.CounterVec // by worker rank
	announcements, dropped, resyncs *prometheus.CounterVec // by outcome, reason, reason
	unknownVersion, natsDropped     prometheus.Counter
	deltas, refused, skewed         prometheus.Counter
	lag                             prometheus.Histogram
}

func newConsumerMetrics(reg prometheus.Registerer) *consumerMetrics {
	counter := func(name, help string) prometheus.Counter {
		return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "warmroute_events_" + name, Help: help}))
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "warmroute_events_" + name, Help: help}, []string{label}))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "warmroute_events_" + name, Help: help}))
	}
	return &consumerMetrics{
		connected: gauge("connected", "1 while NATS is connected."),
		complete: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "warmroute_events_coverage",
			Help: "How much of a rank's cache is known: 1 complete, 0.5 partial or resyncing, 0 stale or none."}, []string{"worker"})),
		gaps:           counters("gaps_total", "Gaps in the deltas of a rank.", "worker"),
		incarnations:   counters("incarnations_total", "Epochs of a rank after its first: restarts of its relay or engine.", "worker"),
		announcements:  counters("announcements_total", "Announcements of relays by outcome.", "outcome"),
		dropped:        counters("dropped_total", "Deltas that were not applied, by reason.", "reason"),
		resyncs:        counters("resyncs_total", "Resyncs by reason.", "reason"),
		unknownVersion: counter("unknown_version_total", "Messages of another protocol version, ignored."),
		natsDropped:    counter("nats_dropped_total", "Messages that the NATS client dropped because this process was too slow."),
		deltas:         counter("deltas_total", "Deltas applied to the index."),
		refused:        counter("refused_blocks_total", "Blocks that did not fit into the index."),
		skewed:         counter("clock_skewed_total", "Deltas that a relay's clock dates in the future; they give no lag."),
		lag: register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{Name: "warmroute_events_lag_seconds",
			Help: "From a delta's making in the relay to its place in the index, by the two clocks.", Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10)})),
	}
}

func (m *consumerMetrics) standing(worker string, s FeedStatus) {
	v := 0.0
	switch s.State {
	case FeedComplete:
		v = 1
	case FeedPartial, FeedResyncing:
		v = 0.5
	}
	m.complete.WithLabelValues(worker).Set(v)
}

// forget ends the series of a rank that is not followed any more.
func (m *consumerMetrics) forget(worker string) {
	m.complete.DeleteLabelValues(worker)
	m.gaps.DeleteLabelValues(worker)
	m.incarnations.DeleteLabelValues(worker)
}

func setBool(g prometheus.Gauge, v bool) {
	if v {
		g.Set(1)
	} else {
		g.Set(0)
	}
}

// register registers c, or returns the collector that another relay has registered
// under its name. Without a Registerer c counts for nobody.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if are := (prometheus.AlreadyRegisteredError{}); errors.As(err, &are) {
		return are.ExistingCollector.(C)
	}
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return c
}

// peersMetrics are those of the exchange of bookings.
type peersMetrics struct {
	proxies, bookings, age prometheus.Gauge
	messages, dropped      *prometheus.CounterVec // by direction, reason
	lost, refused, untold  prometheus.Counter
	unknownVersion         prometheus.Counter
}

func newPeersMetrics(reg prometheus.Registerer) *peersMetrics {
	counter := func(name, help string) prometheus.Counter {
		return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "warmroute_" + name, Help: help}))
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "warmroute_peers_" + name, Help: help}, []string{label}))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "warmroute_" + name, Help: help}))
	}
	return &peersMetrics{
		proxies:        gauge("peers", "Other proxies whose bookings are heard."),
		bookings:       gauge("peers_bookings", "Requests in flight of other proxies, by their last full states."),
		age:            gauge("peers_age_seconds", "Time since the most silent of the other proxies was heard."),
		messages:       counters("messages_total", "Messages of bookings by direction: in or out.", "direction"),
		dropped:        counters("dropped_total", "Messages of bookings that were not used, by reason.", "reason"),
		lost:           counter("peers_lost_messages_total", "Messages of bookings that never arrived; the next full state mends them."),
		refused:        counter("peers_refused_bookings_total", "Bookings of other proxies that were refused: of a worker that is not in the fleet, or over a bound."),
		untold:         counter("peers_untold_bookings_total", "Own bookings that did not fit into a full state."),
		unknownVersion: counter("events_unknown_version_total", "Messages of another protocol version, ignored."),
	}
}
