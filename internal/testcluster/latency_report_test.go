package testcluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

var errTokenizing = errors.New("a tokenizer call is under way")

// cell is one arm's times for one kind of request, in the order of the rounds.
type cell struct {
	Size      string    `json:"size"`
	Turn      string    `json:"turn"`
	Arm       string    `json:"arm"`
	CPUMicros float64   `json:"process_cpu_us_per_request,omitempty"` // of the process between; over all turns of the size
	Micros    []float64 `json:"us"`
	direct    *cell     // the same without anything between; nil for itself
}

func (c *cell) add(d time.Duration) {
	c.Micros = append(c.Micros, math.Round(float64(d.Nanoseconds())/100)/10)
}

// latencyBlocks is into how many blocks of rounds a cell is cut for the range of a figure.
const latencyBlocks = 5

// quantile of unsorted values; NaN-free, as no cell is empty.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// added returns by how much a quantile is above that of the direct arm, and the least and
// most of it in any block of rounds.
func (c *cell) added(q float64) (all, least, most float64) {
	diff := func(a, b []float64) float64 { return quantile(a, q) - quantile(b, q) }
	all = diff(c.Micros, c.direct.Micros)
	least, most = all, all
	for i := range latencyBlocks {
		cut := func(v []float64) []float64 { return v[len(v)*i/latencyBlocks : len(v)*(i+1)/latencyBlocks] }
		if a, b := cut(c.Micros), cut(c.direct.Micros); len(a) > 0 && len(b) > 0 {
			d := diff(a, b)
			least, most = min(least, d), max(most, d)
		}
	}
	return all, least, most
}

// sources checks that each proxy knew its prompts the way its arm is called.
func (b *latencyBench) sources() {
	b.t.Helper()
	for _, a := range append(slices.Clone(b.quick), b.slow) {
		if a.proxy == nil {
			continue
		}
		m, err := a.proxy.metrics()
		if err != nil {
			b.t.Fatal(err)
		}
		var lines []string
		text, engine := 0.0, 0.0
		for k, v := range m {
			labels, ok := strings.CutPrefix(k, "warmroute_prefix_source_total")
			if !ok {
				continue
			}
			lines = append(lines, fmt.Sprintf("%s %.0f", labels, v))
			if strings.Contains(labels, `source="text"`) {
				text += v
			} else if strings.Contains(labels, `source="engine"`) {
				engine += v
			}
		}
		slices.Sort(lines)
		b.t.Logf("%s: prompts by source %s", a.name, strings.Join(lines, ", "))
		switch {
		case strings.HasSuffix(a.name, "text") && (engine > 0 || text == 0),
			strings.HasSuffix(a.name, "engine tokens") && engine == 0,
			!latencyFull && strings.HasSuffix(a.name, "tokens") && text > 0:
			b.t.Errorf("%s knew %v prompts by text and %v by the engine's tokens", a.name, text, engine)
		}
	}
}

// report prints the tables of docs/benchmarks/latency.md and writes the samples.
func (b *latencyBench) report() {
	b.t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "%s, %s/%s, %d CPUs; load average at the start %s, at the end %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), b.load, loadAverage())
	last := ""
	for _, c := range b.cells {
		if title := c.Size + ", " + c.Turn; title != last {
			last = title
			fmt.Fprintf(&out, "\n%s\n\n| arm | n | p50 µs | p99 µs | added p50 µs (range over %d blocks) | added p99 µs (range) | CPU µs |\n|---|---|---|---|---|---|---|\n", title, latencyBlocks)
		}
		fmt.Fprintf(&out, "| %s | %d | %.0f | %.0f |", c.Arm, len(c.Micros), quantile(c.Micros, .5), quantile(c.Micros, .99))
		if c.direct == nil {
			out.WriteString(" | | |\n")
			continue
		}
		for _, q := range []float64{.5, .99} {
			all, least, most := c.added(q)
			fmt.Fprintf(&out, " %.0f (%.0f to %.0f) |", all, least, most)
		}
		if c.CPUMicros > 0 {
			fmt.Fprintf(&out, " %.0f", c.CPUMicros)
		}
		out.WriteString(" |\n")
	}
	fmt.Print(out.String())

	raw, err := json.Marshal(struct {
		Go      string  `json:"go"`
		CPUs    int     `json:"cpus"`
		Load    string  `json:"load_average_at_start"`
		LoadEnd string  `json:"load_average_at_end"`
		Cells   []*cell `json:"cells"`
	}{runtime.Version(), runtime.NumCPU(), b.load, loadAverage(), b.cells})
	if err != nil {
		b.t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "docs", "benchmarks", "raw")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	for name, data := range map[string][]byte{"latency.json": raw, "latency.txt": []byte(out.String())} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// loadAverage is the machine's, "unknown" where it is not told.
func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}

// cpuTimes returns what the processes of the arms have computed so far; nothing where the
// system does not tell.
func cpuTimes(arms []*arm) map[*arm]time.Duration {
	out := map[*arm]time.Duration{}
	for _, a := range arms {
		if a.process == nil {
			continue
		}
		out[a] = processCPU(a.process.pid())
	}
	return out
}

// processCPU returns what a process has computed so far, 0 where the system does not tell.
func processCPU(pid int) (d time.Duration) {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	for _, task := range tasks {
		raw, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		ns, _ := strconv.ParseInt(strings.Fields(string(raw))[0], 10, 64)
		d += time.Duration(ns)
	}
	return d
}

// bothHealthy is an error unless the proxy can use both of its workers.
func (p *liveProxy) bothHealthy() error {
	v, err := p.workers()
	if err != nil {
		return err
	}
	for _, w := range v.Workers {
		if !w.Healthy || w.Engine != "vllm" {
			return fmt.Errorf("%s: worker %s is %s, healthy %v", p.name, w.ID, w.Engine, w.Healthy)
		}
	}
	return nil
}
