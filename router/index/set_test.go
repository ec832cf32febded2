package index

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/kv"
)

func TestSet_OneExactIndexPerBlockSize(t *testing.T) {
	s := NewSet(Config{})
	var all sync.WaitGroup
	got := make([]*Exact, 8)
	for i := range got {
		all.Go(func() { got[i] = s.Exact(16 << (i % 2)) })
	}
	all.Wait()
	n := 0
	s.Each(func(blockSize int, x *Exact) {
		n++
		if x != s.Exact(blockSize) {
			t.Errorf("two indexes of block size %d", blockSize)
		}
	})
	if n != 2 || got[0] == got[1] || got[0] != got[2] {
		t.Errorf("%d indexes for two block sizes", n)
	}
}

func TestSet_DropReachesEveryIndex(t *testing.T) {
	s := NewSet(Config{})
	c := chainOf(70, 1)
	for w := range kv.Worker(2) {
		s.Exact(16).Apply(w, stored(kv.TierGPU, c, 0, 70))
		s.Exact(64).Apply(w, stored(kv.TierCPU, c, 0, 70))
		s.Approximate().Learn(w, c, []int{30})
		s.Predicted().Add(w, c)
	}
	s.Drop(0)
	st := s.Stats()
	if st.Memberships != 140 || st.PredictedEntries != 1 || st.ApproximateEntries != 2 {
		t.Errorf("after the drop: %+v", st)
	}
	s.Drop(1)
	if st = s.Stats(); st.Memberships+st.Blocks+st.PredictedEntries+st.ApproximateEntries != 0 {
		t.Errorf("after both: %+v", st)
	}
}

func TestCollector_TellsTheStats(t *testing.T) {
	s := NewSet(Config{MaxBytes: 400_000})
	x := s.Exact(16)
	c := chainOf(60_000, 1)
	refused := x.Apply(1, stored(kv.TierGPU, c, 0, 100))
	refused += x.Apply(0, stored(kv.TierGPU, c, 0, len(c)))
	s.Approximate().Learn(0, c, nil)
	s.Predicted().Add(0, c)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(s))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := *f.Name
			for _, l := range m.Label {
				name += "," + *l.Value
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	st := s.Stats()
	for name, want := range map[string]float64{
		"warmroute_index_blocks,16":                          float64(len(c) - refused),
		"warmroute_index_memberships,16":                     float64(len(c) - refused + 100),
		"warmroute_index_refused_blocks_total,16":            float64(refused),
		"warmroute_index_bytes":                              float64(st.Bytes),
		"warmroute_index_max_bytes":                          400_000,
		"warmroute_index_approximate_entries":                128,
		"warmroute_index_approximate_bytes":                  float64(st.ApproximateBytes),
		"warmroute_index_approximate_evicted_total,age":      0,
		"warmroute_index_approximate_evicted_total,capacity": 0,
		"warmroute_index_predicted_entries":                  1,
		"warmroute_index_predicted_refused_total":            0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v (there: %v), want %v", name, v, ok, want)
		}
		delete(got, name)
	}
	if len(got) > 0 || refused == 0 {
		t.Errorf("%d refused; not expected: %v", refused, got)
	}
}
