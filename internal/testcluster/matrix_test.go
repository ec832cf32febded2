package testcluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
)

// full says that the whole matrix runs (make bench-routing): every concurrency, both
// starts, five seeds. Without it one cell and one seed of the same code do.
var full = os.Getenv("WARMROUTE_BENCH_ROUTING") != ""

// allModes starts with the mode under test.
var allModes = []router.Mode{router.ModeKV, router.ModeRoundRobin, router.ModeRandom, router.ModeLeastLoaded}

// stagger spreads the clients' first requests over a few turns of the seed workload.
const stagger = 60 * time.Second

// cell is one column of the matrix: every mode and seed of it is one run.
type cell struct {
	name     string
	workload func(seed uint64) Workload
	config   Config // of every run; Mode and Seed are set per run
	modes    []router.Mode
	seeds    int
	results  map[router.Mode][]*Result // by seed
}

// run plays every mode and seed of the cells, as many at once as there are processors.
func run(t *testing.T, cells []*cell) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, c := range cells {
		c.results = map[router.Mode][]*Result{}
		for _, mode := range c.modes {
			c.results[mode] = make([]*Result, c.seeds)
			for i := range c.seeds {
				slot := &c.results[mode][i]
				g.Go(func() error {
					cfg := c.config
					cfg.Mode, cfg.Seed = mode, uint64(i+1)
					r, err := Run(cfg, c.workload(cfg.Seed))
					if err != nil {
						return err
					}
					*slot = r
					t.Logf("%-34s %-12s seed %d: reuse %.3f, %.3f rps, TTFT %.2f s, TPOT %.2f ms, E2E %.2f s, max/mean %.2f (%.1f s wall)",
						c.name, mode, cfg.Seed, r.Reuse, r.RPS, r.TTFT.Mean, 1e3*r.TPOT.Mean, r.E2E.Mean, r.MaxOverMean, r.Wall.Seconds())
					return nil
				})
			}
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// mean is the mean of one measure over the cell's seeds.
func (c *cell) mean(m router.Mode, f func(*Result) float64) float64 {
	var sum float64
	for _, r := range c.results[m] {
		sum += f(r)
	}
	return sum / float64(len(c.results[m]))
}

func reuse(r *Result) float64    { return r.Reuse }
func rps(r *Result) float64      { return r.RPS }
func ttftMean(r *Result) float64 { return r.TTFT.Mean }
func ttftP50(r *Result) float64  { return r.TTFT.P50 }
func ttftP99(r *Result) float64  { return r.TTFT.P99 }
func tpot(r *Result) float64     { return r.TPOT.Mean }
func e2e(r *Result) float64      { return r.E2E.Mean }
func skew(r *Result) float64     { return r.MaxOverMean }
func same(r *Result) float64     { return r.SameWorker }
func liveKV(r *Result) float64   { return r.LiveKV }

// table renders the cells as markdown, one row a mode, means over the seeds.
func table(cells []*cell) string {
	var b strings.Builder
	b.WriteString("| workload | mode | reuse | rps | TTFT mean s | p50 | p99 | TPOT ms | E2E s | max/mean | same worker | live KV |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		for _, m := range c.modes {
			fmt.Fprintf(&b, "| %s | %s | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", c.name, m,
				c.mean(m, reuse), c.mean(m, rps), c.mean(m, ttftMean), c.mean(m, ttftP50), c.mean(m, ttftP99), 1e3*c.mean(m, tpot),
				c.mean(m, e2e), c.mean(m, skew), c.mean(m, same), c.mean(m, liveKV))
		}
	}
	return b.String()
}

// save writes the raw results beside the report: WARMROUTE_BENCH_ROUTING names the
// folder, or is 1 for docs/benchmarks/raw.
func save(t *testing.T, name string, cells []*cell) {
	t.Helper()
	var all []*Result
	for _, c := range cells {
		for _, m := range c.modes {
			all = append(all, c.results[m]...)
		}
	}
	raw, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	dir := os.Getenv("WARMROUTE_BENCH_ROUTING")
	if dir == "1" {
		dir = "../../docs/benchmarks/raw"
	}
	if err := os.WriteFile(filepath.Join(dir, name), append(raw, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRouting_SeedWorkload asserts that kv wins reuse without paying for it in
// throughput or decode speed: at every concurrency and start, reuse is at least 93 %
// and rps, TPOT and E2E are within 8 % of the best mode that ignores the cache.
func TestRouting_SeedWorkload(t *testing.T) {
	concurrencies, starts, seeds, conversations, wantReuse := []int{8}, []time.Duration{stagger}, 1, 100, 0.93
	if testing.Short() {
		conversations, wantReuse = 16, 0.91 // the first prompts, which nobody holds, weigh more
	}
	if full {
		concurrencies, starts, seeds = []int{1, 8, 32, 64}, []time.Duration{0, stagger}, 5
	}
	var cells []*cell
	for _, start := range starts {
		for _, concurrency := range concurrencies {
			name := fmt.Sprintf("seed, c=%d, simultaneous", concurrency)
			if start > 0 {
				name = fmt.Sprintf("seed, c=%d, staggered", concurrency)
			}
			cells = append(cells, &cell{
				name: name, modes: allModes, seeds: seeds,
				workload: func(seed uint64) Workload { return Seed(conversations, seed) },
				config:   Config{Concurrency: concurrency, Stagger: start},
			})
		}
	}
	run(t, cells)
	t.Logf("means over %d seeds\n%s", seeds, table(cells))
	if full {
		save(t, "routing-seed.json", cells)
	}
	for _, c := range cells {
		if got := c.mean(router.ModeKV, reuse); got < wantReuse {
			t.Errorf("%s: reuse %.3f, want ≥ %.2f", c.name, got, wantReuse)
		}
		bestRPS, bestTPOT, bestE2E := 0.0, 1e9, 1e9
		for _, m := range c.modes[1:] {
			bestRPS = max(bestRPS, c.mean(m, rps))
			bestTPOT = min(bestTPOT, c.mean(m, tpot))
			bestE2E = min(bestE2E, c.mean(m, e2e))
		}
		if got := c.mean(router.ModeKV, rps); got < 0.92*bestRPS {
			t.Errorf("%s: %.3f rps, want within 8 %% of %.3f", c.name, got, bestRPS)
		}
		if got := c.mean(router.ModeKV, tpot); got > 1.08*bestTPOT {
			t.Errorf("%s: TPOT %.2f ms, want within 8 %% of %.2f", c.name, 1e3*got, 1e3*bestTPOT)
		}
		if got := c.mean(router.ModeKV, e2e); got > 1.08*bestE2E {
			t.Errorf("%s: E2E %.2f s, want within 8 %% of %.2f", c.name, got, bestE2E)
		}
		if c.config.Concurrency != 8 {
			continue
		}
		for _, r := range c.results[router.ModeKV] {
			if r.MaxOverMean > 2 {
				t.Errorf("%s, seed %d: the busiest worker got %.2f times the mean of requests, want ≤ 2", c.name, r.Seed, r.MaxOverMean)
			}
		}
	}
}

// TestRouting_AgentsNearCapacity asserts that kv beats least-loaded where contexts
// nearly fill the caches and every wrong move evicts somebody.
func TestRouting_AgentsNearCapacity(t *testing.T) {
	concurrencies, sessions, seeds := []int{72}, 72, 1
	if testing.Short() {
		concurrencies, sessions = []int{16}, 16
	}
	modes := []router.Mode{router.ModeKV, router.ModeLeastLoaded}
	if full {
		concurrencies, sessions, seeds, modes = []int{56, 72, 104}, 250, 5, allModes
	}
	var cells []*cell
	for _, concurrency := range concurrencies {
		cells = append(cells, &cell{
			name: fmt.Sprintf("agents, c=%d", concurrency), modes: modes, seeds: seeds,
			workload: func(seed uint64) Workload { return Agents(sessions, seed) },
			config:   Config{Concurrency: concurrency, Stagger: stagger},
		})
	}
	run(t, cells)
	t.Logf("means over %d seeds\n%s", seeds, table(cells))
	if full {
		save(t, "routing-agents.json", cells)
	}
	for _, c := range cells {
		for name, f := range map[string]func(*Result) float64{"TTFT": ttftMean, "E2E": e2e} {
			kv, other := c.mean(router.ModeKV, f), c.mean(router.ModeLeastLoaded, f)
			if kv >= other {
				t.Errorf("%s: mean %s of kv %.2f s, of least-loaded %.2f s", c.name, name, kv, other)
			}
		}
	}
}

// TestRouting_OtherFleets asks whether the claim survives where the cost model's
// assumptions do not hold: prefill and decode times that are not linear, an engine
// that caches at other moments, two proxies, with and without each other's bookings.
func TestRouting_OtherFleets(t *testing.T) {
	conversations, seeds := 16, 1
	if full {
		conversations, seeds = 100, 3
	}
	var cells []*cell
	add := func(name string, cfg Config) {
		cfg.Stagger = stagger
		cells = append(cells, &cell{
			name: fmt.Sprintf("seed, c=%d, %s", cfg.Concurrency, name), seeds: seeds, config: cfg,
			modes:    []router.Mode{router.ModeKV, router.ModeLeastLoaded},
			workload: func(seed uint64) Workload { return Seed(conversations, seed) },
		})
	}
	add("polynomial", Config{Concurrency: 8, Engine: sim.EngineConfig{Profile: sim.PolynomialProfile{}}})
	if full {
		add("polynomial", Config{Concurrency: 32, Engine: sim.EngineConfig{Profile: sim.PolynomialProfile{}}})
		for _, concurrency := range []int{8, 32} {
			add("SGLang", Config{Concurrency: concurrency, Engine: sim.EngineConfig{Personality: sim.SGLang}})
			add("two proxies", Config{Concurrency: concurrency, Routers: 2})
			add("two proxies, bookings", Config{Concurrency: concurrency, Routers: 2, BookingDelay: time.Millisecond})
		}
	}
	run(t, cells)
	t.Logf("means over %d seeds\n%s", seeds, table(cells))
	if full {
		save(t, "routing-fleets.json", cells)
	}
	for _, c := range cells {
		kv, other := c.mean(router.ModeKV, e2e), c.mean(router.ModeLeastLoaded, e2e)
		if kv > 1.08*other {
			t.Errorf("%s: E2E %.2f s, want within 8 %% of least-loaded's %.2f", c.name, kv, other)
		}
		if kv, other := c.mean(router.ModeKV, reuse), c.mean(router.ModeLeastLoaded, reuse); kv < other {
			t.Errorf("%s: reuse %.3f, of least-loaded %.3f", c.name, kv, other)
		}
	}
}
