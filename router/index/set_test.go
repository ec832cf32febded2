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

func TestSet_BlockSizesAreBounded(t *testing.T) {
	s := NewSet(Config{})
	c := chainOf(10, 1)
	for size := 1; size <= maxSizes+3; size++ {
		x := s.Exact(size)
		want := 0
		if size > maxSizes {
			want = 10
		}
		if refused := x.Apply(0, stored(kv.TierGPU, c, 0, 10)); refused != want {
			t.Fatalf("block size %d: %d blocks refused, want %d", size, refused, want)
		}
	}
	if st := s.Stats(); len(st.Sizes) != maxSizes || st.Refused != 30 {
		t.Errorf("%d block sizes, %d blocks refused, want %d and 30", len(st.Sizes), st.Refused, maxSizes)
	}
	if s.Exact(16) == s.Exact(maxSizes+1) || s.Exact(maxSizes+1) != s.Exact(maxSizes+2) {
		t.Error("block sizes past the bound do not share the index that refuses")
	}
}

func TestExact_EventsOfNoTierChangeNothing(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(10, 1)
	x.Apply(0, stored(kv.Tiers, c, 0, 10))
	x.Apply(0, removed(kv.Tiers, c...))
	x.Apply(0, kv.Event{Kind: 99})
	if x.blocks != 0 {
		t.Errorf("%d blocks", x.blocks)
	}
	x.Apply(0, stored(kv.TierGPU, c, 0, 10))
	x.Apply(0, kv.Event{Kind: kv.EventCleared, Tier: 77})
	if x.blocks != 0 {
		t.Errorf("cleared: %d blocks stay", x.blocks)
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
