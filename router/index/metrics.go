package index

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type collector struct {
	set *Set

	blocks, memberships, refused, bytes, maxBytes *prometheus.Desc

	approximateEntries, approximateBytes, approximateEvicted *prometheus.Desc

	predictedEntries, predictedRefused *prometheus.Desc
}

// NewCollector returns the metrics of a set, read from its Stats at each scrape.
func NewCollector(s *Set) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("warmroute_index_"+name, help, labels, nil)
	}
	return &collector{
		set:         s,
		blocks:      desc("blocks", "Distinct blocks in the exact index.", "block_size"),
		memberships: desc("memberships", "Blocks in the exact index, counted once per worker rank and tier.", "block_size"),
		refused:     desc("refused_blocks_total", "Stored blocks not taken because the exact indexes are at their bytes cap.", "block_size"),
		bytes:       desc("bytes", "Memory of all exact indexes."),
		maxBytes:    desc("max_bytes", "Bytes cap of all exact indexes together."),

		approximateEntries: desc("approximate_entries", "Prefixes in the approximate index."),
		approximateBytes:   desc("approximate_bytes", "Memory of the approximate index."),
		approximateEvicted: desc("approximate_evicted_total", "Prefixes that left the approximate index, by reason: capacity or age.", "reason"),

		predictedEntries: desc("predicted_entries", "Prompts in flight whose blocks are predicted on a worker."),
		predictedRefused: desc("predicted_refused_total", "Prompts in flight that were not recorded because the table is full."),
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.blocks, c.memberships, c.refused, c.bytes, c.maxBytes,
		c.approximateEntries, c.approximateBytes, c.approximateEvicted,
		c.predictedEntries, c.predictedRefused,
	} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.set.Stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, z := range st.Sizes {
		size := strconv.Itoa(z.BlockSize)
		gauge(c.blocks, float64(z.Blocks), size)
		gauge(c.memberships, float64(z.Memberships), size)
		counter(c.refused, z.Refused, size)
	}
	gauge(c.bytes, float64(st.Bytes))
	gauge(c.maxBytes, float64(st.MaxBytes))
	gauge(c.approximateEntries, float64(st.ApproximateEntries))
	gauge(c.approximateBytes, float64(st.ApproximateBytes))
	counter(c.approximateEvicted, st.ApproximateEvicted, "capacity")
	counter(c.approximateEvicted, st.ApproximateExpired, "age")
	gauge(c.predictedEntries, float64(st.PredictedEntries))
	counter(c.predictedRefused, st.PredictedRefused)
}
