//go:build real

package trace

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReal_MooncakeTraces reads the two public traces: row counts, lengths that agree
// with the ids, and ids that always follow the same predecessor.
func TestReal_MooncakeTraces(t *testing.T) {
	dir := os.Getenv("WARMROUTE_DATA")
	if dir == "" {
		t.Fatal("WARMROUTE_DATA is not set; it names the folder that holds mooncake/conversation_trace.jsonl")
	}
	f := func(file string, rows, blocks, unique int) {
		t.Helper()
		in, err := os.Open(filepath.Join(dir, "mooncake", file))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		all, err := ReadAll(in, 0)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		total := 0
		before := map[uint64]uint64{}
		for i, q := range all {
			total += len(q.HashIDs)
			if want := (q.InputTokens + DefaultBlockTokens - 1) / DefaultBlockTokens; len(q.HashIDs) != want {
				t.Errorf("%s line %d: %d ids for %d tokens", file, q.Line, len(q.HashIDs), q.InputTokens)
			}
			if i > 0 && q.Time < all[i-1].Time {
				t.Errorf("%s line %d: earlier than the line before", file, q.Line)
			}
			last := ^uint64(0)
			for _, id := range q.HashIDs {
				if p, ok := before[id]; ok && p != last {
					t.Fatalf("%s line %d: id %d follows %d and %d", file, q.Line, id, p, last)
				}
				before[id], last = last, id
			}
		}
		t.Logf("%s: %d rows, %d blocks, %d unique, the last at %v", file, len(all), total, len(before), all[len(all)-1].Time)
		if len(all) != rows || total != blocks || len(before) != unique {
			t.Errorf("%s: %d rows, %d blocks, %d unique, want %d, %d, %d", file, len(all), total, len(before), rows, blocks, unique)
		}
	}
	f("conversation_trace.jsonl", 12031, 288500, 182790)
	f("synthetic_trace.jsonl", 3993, 121877, 43924)
}
