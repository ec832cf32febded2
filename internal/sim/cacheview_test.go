package sim

import (
	"fmt"
	"testing"
)

func TestHTTP_CacheShowsTheTruth(t *testing.T) {
	s := start(t, Config{DPRanks: 2, Engine: EngineConfig{BlockSize: 4}})
	if r := post(t, s, "/v1/chat/completions", hello); r.status != 200 {
		t.Fatal(r.raw)
	}
	v := get(t, s, "/cache")
	total := 0
	for i := range 2 {
		rank := fmt.Sprintf("ranks.%d.", i)
		truth := s.Truth(i)
		names, _ := dig(v.json, rank+"sequences").([]any)
		if num(dig(v.json, rank+"blocks")) != len(truth) || len(names) != len(truth) || num(dig(v.json, rank+"block_size")) != 4 {
			t.Errorf("rank %d holds %d blocks, /cache says %s", i, len(truth), v.raw)
		}
		for _, n := range names {
			found := false
			for h := range truth {
				found = found || fmt.Sprintf("%016x", uint64(h)) == n
			}
			if !found {
				t.Errorf("rank %d does not hold %v", i, n)
			}
		}
		total += len(truth)
	}
	if total == 0 {
		t.Error("nothing is cached")
	}
}
