package testcluster

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/warmroute/warmroute/bench/trace"
	"github.com/warmroute/warmroute/router"
)

// Facts about the Mooncake conversation trace (kvcache-ai/Mooncake, FAST25, 12,031
// rows over 3,537 s), from which mooncakeShaped draws.
var (
	mooncakeFirstTokens = quantiles{{0, 900}, {.5, 6_600}, {.9, 26_000}, {.99, 80_000}, {1, 126_000}}
	mooncakeNewTokens   = quantiles{{0, 2}, {.1, 4}, {.5, 28}, {.9, 4_397}, {1, 20_000}}
	mooncakeOutput      = quantiles{{0, 10}, {.5, 350}, {.9, 597}, {.99, 1_120}, {1, 2_000}}
	mooncakeGapSeconds  = quantiles{{0, 20}, {.1, 42}, {.5, 126}, {.9, 483}, {1, 900}}
)

const (
	mooncakeRowsPerSecond = 12_031.0 / 3_537
	mooncakeMultiTurn     = 1_984.0 / 8_133 // share of sessions with a second turn
	mooncakeNextTurn      = 0.49            // chance of one more after it: 2.96 turns on average
	mooncakeTick          = 3 * time.Second // timestamps fall on multiples of it
)

// mooncakeShaped returns n rows with the arrivals, lengths, follow-ups and the one
// common first block of the Mooncake conversation trace.
func mooncakeShaped(n int, seed uint64) []trace.Request {
	r := rng(seed, 0x300c)
	var rows []trace.Request
	var id uint64
	grow := func(ids []uint64, tokens int) []uint64 {
		// A last block that was partial has another id once it is full.
		ids = append([]uint64(nil), ids...)
		for len(ids) < (tokens+trace.DefaultBlockTokens-1)/trace.DefaultBlockTokens {
			id++
			ids = append(ids, id)
		}
		return ids
	}
	at, tick := 0.0, mooncakeTick.Seconds()
	span := float64(n) / mooncakeRowsPerSecond
	rate := mooncakeRowsPerSecond / (1 + mooncakeMultiTurn/(1-mooncakeNextTurn))
	for at < span {
		at += r.ExpFloat64() / rate
		input, when := int(mooncakeFirstTokens.draw(r)), at
		ids := grow([]uint64{0}, input)
		next := mooncakeMultiTurn
		for when < span {
			output := int(mooncakeOutput.draw(r))
			rows = append(rows, trace.Request{
				Time: time.Duration(when/tick) * mooncakeTick, HasTime: true,
				InputTokens: input, OutputTokens: output, HashIDs: ids,
			})
			if r.Float64() > next {
				break
			}
			next = mooncakeNextTurn
			when += mooncakeGapSeconds.draw(r)
			ids = ids[:max(input/trace.DefaultBlockTokens, 1)]
			input += output + int(mooncakeNewTokens.draw(r))
			ids = grow(ids, input)
		}
	}
	slices.SortStableFunc(rows, func(a, b trace.Request) int { return cmp.Compare(a.Time, b.Time) })
	return rows
}

// TestRouting_MooncakeDoesNotEndOnOneWorker plays requests that all start with one
// block: a router that follows any overlap gathers them on the worker that has it.
func TestRouting_MooncakeDoesNotEndOnOneWorker(t *testing.T) {
	rows, name, modes := mooncakeShaped(1_200, 57), "mooncake-shaped", allModes[:1]
	if testing.Short() {
		rows = rows[:400]
	}
	if full {
		rows, name = realMooncake(t), "mooncake conversation"
	}
	if full {
		modes = allModes
	}
	c := &cell{name: name, modes: modes, seeds: 1, workload: func(uint64) Workload { return Mooncake(rows) }}
	run(t, []*cell{c})
	t.Logf("%s", table([]*cell{c}))
	if full {
		save(t, "routing-mooncake.json", []*cell{c})
	}
	r := c.results[router.ModeKV][0]
	last := make([]int, len(r.PerWorker))
	tail := r.Rows[len(r.Rows)*9/10:]
	for _, q := range tail {
		last[q.Worker]++
	}
	t.Logf("requests per worker %v, of the last tenth %v", r.PerWorker, last)
	for w, n := range last {
		if mean := len(tail) / len(last); n > 2*mean || r.PerWorker[w] > 2*r.Requests/len(last) {
			t.Errorf("worker %d got %d of %d requests and %d of the last %d", w, r.PerWorker[w], r.Requests, n, len(tail))
		}
	}
}

// realMooncake reads the public trace from the folder that WARMROUTE_DATA names,
// relative to the root of the repository. Without it the generator stands in.
func realMooncake(t *testing.T) []trace.Request {
	dir := os.Getenv("WARMROUTE_DATA")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join("../..", dir)
	}
	f, err := os.Open(filepath.Join(dir, "mooncake", "conversation_trace.jsonl"))
	if err != nil {
		t.Logf("the seeded generator stands in for the Mooncake trace: %v; set WARMROUTE_DATA to the folder that holds mooncake/", err)
		return mooncakeShaped(12_031, 57)
	}
	defer f.Close()
	rows, err := trace.ReadAll(f, trace.DefaultBlockTokens)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestMooncakeShaped_HasTheStatisticsOfTheTrace(t *testing.T) {
	rows := mooncakeShaped(12_031, 1)
	var input, output []float64
	seen, hit, blocks := map[uint64]bool{}, 0, 0
	for _, q := range rows {
		input, output = append(input, float64(q.InputTokens)), append(output, float64(q.OutputTokens))
		if want := (q.InputTokens + trace.DefaultBlockTokens - 1) / trace.DefaultBlockTokens; len(q.HashIDs) != want {
			t.Fatalf("%d ids for %d tokens, want %d", len(q.HashIDs), q.InputTokens, want)
		}
		for _, id := range q.HashIDs {
			if seen[id] {
				hit++
			}
			seen[id] = true
			blocks++
		}
	}
	in, out := summarise(input), summarise(output)
	ideal := float64(hit) / float64(blocks)
	t.Logf("%d rows, input p50 %.0f p99 %.0f mean %.0f, output p50 %.0f mean %.0f, ideal hit %.3f", len(rows), in.P50, in.P99, in.Mean, out.P50, out.Mean, ideal)
	if math.Abs(in.P50/6_909-1) > .15 || math.Abs(in.Mean/12_035-1) > .15 || math.Abs(out.P50/350-1) > .1 || math.Abs(ideal-.366) > .06 {
		t.Errorf("the trace has an input p50 of 6,909 and mean of 12,035, an output p50 of 350 and an ideal hit of 0.366")
	}
	if math.Abs(float64(len(rows))/12_031-1) > .1 {
		t.Errorf("%d rows, want about 12,031", len(rows))
	}
}
