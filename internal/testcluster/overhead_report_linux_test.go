package testcluster_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// The limits of issue 5.
const (
	mostLatency = 1.3 // × the fasthttp pass-through, p50 and p99
	leastRate   = 1.0 // × the net/http reverse proxy
	mostDelay   = 1.5 // × nginx, added p99 of an event
	mostStream  = 80 << 10
)

// series are the figures of each arm, one a round.
type series [][]float64

func newSeries(arms int) series { return make(series, arms) }

// measured are the figures of one kind of load.
type measured struct {
	ttft50, ttft99, total50, total99, rate, cpu series
}

func newMeasured(arms int) *measured {
	s := func() series { return newSeries(arms) }
	return &measured{s(), s(), s(), s(), s(), s()}
}

func (m *measured) add(arm int, s sample) {
	for _, f := range []struct {
		to series
		v  float64
	}{
		{m.ttft50, quantile(s.ttft, .5)}, {m.ttft99, quantile(s.ttft, .99)},
		{m.total50, quantile(s.total, .5)}, {m.total99, quantile(s.total, .99)},
		{m.rate, s.perSecond}, {m.cpu, s.cpu},
	} {
		f.to[arm] = append(f.to[arm], f.v)
	}
}

// estimate is a figure with the bounds of its 95 % interval.
type estimate struct{ is, low, high float64 }

func (e estimate) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", e.is, e.low, e.high) }

// bootstrap estimates f of all rounds by drawing rounds with replacement.
func bootstrap(rounds int, f func(rounds []int) float64) estimate {
	r, pick := rand.New(rand.NewPCG(1, 95)), make([]int, rounds)
	for i := range pick {
		pick[i] = i
	}
	e := estimate{is: f(pick)}
	draws := make([]float64, 2000)
	for d := range draws {
		for i := range pick {
			pick[i] = r.IntN(rounds)
		}
		draws[d] = f(pick)
	}
	e.low, e.high = quantile(draws, .025), quantile(draws, .975)
	return e
}

func median(v []float64, rounds []int) float64 {
	picked := make([]float64, len(rounds))
	for i, r := range rounds {
		picked[i] = v[r]
	}
	slices.Sort(picked)
	n := len(picked)
	return (picked[n/2] + picked[(n-1)/2]) / 2
}

// ratio estimates the median over rounds of arm ÷ reference.
func (s series) ratio(arm, reference int) estimate {
	quotients := make([]float64, len(s[arm]))
	for i := range quotients {
		quotients[i] = s[arm][i] / s[reference][i]
	}
	return bootstrap(len(quotients), func(rounds []int) float64 { return median(quotients, rounds) })
}

// addedRatio estimates how much an arm adds to the direct way as a multiple of what the
// reference adds; both by medians over rounds.
func (s series) addedRatio(arm, reference int) estimate {
	return bootstrap(len(s[arm]), func(rounds []int) float64 {
		direct := median(s[armDirect], rounds)
		return (median(s[arm], rounds) - direct) / (median(s[reference], rounds) - direct)
	})
}

func (s series) median(arm int) float64 {
	return bootstrap(len(s[arm]), func(rounds []int) float64 { return median(s[arm], rounds) }).is
}

// printf adds to the report.
func (b *overheadBench) printf(format string, args ...any) { fmt.Fprintf(&b.out, format, args...) }

// verdict says whether a limit holds. It is lost where the whole interval is beyond it.
func (b *overheadBench) verdict(what string, e estimate, limit float64, most bool) {
	holds, lost, sign := e.is <= limit, e.low > limit, "≤"
	if !most {
		holds, lost, sign = e.is >= limit, e.high < limit, "≥"
	}
	word := map[bool]string{true: "met", false: "NOT MET"}[holds]
	b.printf("%s: %s %s %v: %s\n", what, e, sign, limit, word)
	if lost {
		b.lost = append(b.lost, fmt.Sprintf("%s is %s and must be %s %v", what, e, sign, limit))
	}
}

func (b *overheadBench) reportLoad(l overheadLoad, m *measured) {
	b.printf("\n%s, %d clients\n\n| arm | TTFT p50 µs | p99 | whole p50 µs | p99 | requests/s | CPU µs a request |\n|---|---|---|---|---|---|---|\n", l.name, l.clients)
	for _, i := range b.ran() {
		b.printf("| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", b.arms[i].name, m.ttft50.median(i), m.ttft99.median(i), m.total50.median(i), m.total99.median(i), m.rate.median(i), m.cpu.median(i))
	}
	b.printf("\n")
	if l.rate {
		b.verdict(l.name+": requests/s ÷ net/http's", m.rate.ratio(armWarmroute, armReverse), leastRate, false)
	}
	what, p50, p99 := "TTFT", m.ttft50, m.ttft99 // of a paced stream the rest is the engine's time
	if l.events == 0 || l.rate {
		what, p50, p99 = "answer", m.total50, m.total99
	}
	b.verdict(l.name+": "+what+" p50 ÷ fasthttp's", p50.ratio(armWarmroute, armFastHTTP), mostLatency, true)
	b.verdict(l.name+": "+what+" p99 ÷ fasthttp's", p99.ratio(armWarmroute, armFastHTTP), mostLatency, true)
	b.printf("added %s p50 ÷ fasthttp's added: %s, ÷ net/http's added: %s; CPU ÷ fasthttp's: %s, ÷ net/http's: %s\n", what,
		p50.addedRatio(armWarmroute, armFastHTTP), p50.addedRatio(armWarmroute, armReverse), m.cpu.ratio(armWarmroute, armFastHTTP), m.cpu.ratio(armWarmroute, armReverse))
	b.raw = append(b.raw, rawLoad{l.name, l.clients, m.ttft50, m.ttft99, m.total50, m.total99, m.rate, m.cpu})
}

func (b *overheadBench) reportPaced(p50, p99, cpu series) {
	b.printf("\n%d streams with an event every %s\n\n| arm | delay of an event p50 µs | p99 | added p50 | p99 | CPU µs an event |\n|---|---|---|---|---|---|\n", b.plan.pacedStreams, eventPace)
	for _, i := range b.ran() {
		b.printf("| %s | %.0f | %.0f | %.0f | %.0f | %.1f |\n", b.arms[i].name, p50.median(i), p99.median(i), p50.median(i)-p50.median(armDirect), p99.median(i)-p99.median(armDirect), cpu.median(i))
	}
	b.printf("\n")
	if b.arms[armNginx] != nil {
		b.verdict("added delay p99 ÷ nginx's", p99.addedRatio(armWarmroute, armNginx), mostDelay, true)
		b.printf("added delay p50 ÷ nginx's: %s; delay p99 ÷ nginx's: %s\n", p50.addedRatio(armWarmroute, armNginx), p99.ratio(armWarmroute, armNginx))
	}
	b.raw = append(b.raw, rawPaced{b.plan.pacedStreams, p50, p99})
}

func (b *overheadBench) reportMemory(before, after holdings) {
	each := func(with, without float64) float64 { return (with - without) / float64(b.plan.held) / 1024 }
	rss := each(after.rss, before.rss)
	b.printf("\n%d open streams, KB each: resident %.1f, heap %.1f, stacks %.1f (resident %.0f MB before, %.0f MB with them)\n", b.plan.held,
		rss, each(after.heap, before.heap), each(after.stack, before.stack), before.rss/(1<<20), after.rss/(1<<20))
	held := each(after.heap+after.stack, before.heap+before.stack)
	b.verdict("resident KB a stream", estimate{rss, rss, rss}, mostStream/1024, true)
	b.verdict("heap and stack KB a stream", estimate{held, held, held}, mostStream/1024, true)
}

// rawLoad and rawPaced are what the JSON file holds: figures by arm and round.
type rawLoad struct {
	Kind    string `json:"kind"`
	Clients int    `json:"clients"`
	TTFT50  series `json:"ttft_p50_us"`
	TTFT99  series `json:"ttft_p99_us"`
	Total50 series `json:"whole_p50_us"`
	Total99 series `json:"whole_p99_us"`
	Rate    series `json:"requests_per_second"`
	CPU     series `json:"cpu_us_per_request"`
}

type rawPaced struct {
	Streams int    `json:"streams"`
	P50     series `json:"event_delay_p50_us"`
	P99     series `json:"event_delay_p99_us"`
}

// write prints the report, keeps it with the figures of the rounds, and fails the test where
// a limit is lost.
func (b *overheadBench) write() {
	b.t.Helper()
	text := fmt.Sprintf("%s, %s/%s, %d CPUs; load average at the start %s, at the end %s\n%s", runtime.Version(), runtime.GOOS, runtime.GOARCH, cpus, b.load, loadAverage(), b.out.String())
	fmt.Print(text)
	for _, l := range b.lost {
		b.t.Error(l)
	}
	raw, err := json.Marshal(map[string]any{"arms": overheadArmNames, "parts": b.raw})
	if err != nil {
		b.t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "docs", "benchmarks", "raw")
	for name, data := range map[string][]byte{"overhead.json": raw, "overhead.txt": []byte(text)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// heapFigure reads "# name = bytes" or "# name = used / got" of a heap profile's text.
func heapFigure(profile []byte, name string) float64 {
	for line := range strings.Lines(string(profile)) {
		if v, ok := strings.CutPrefix(line, "# "+name+" = "); ok {
			v, _, _ = strings.Cut(v, " /")
			n, _ := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return n
		}
	}
	return 0
}

// residentBytes returns the memory of a process.
func residentBytes(pid int) float64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	f := append(strings.Fields(string(raw)), "0", "0")
	n, _ := strconv.ParseFloat(f[1], 64)
	return n * float64(os.Getpagesize())
}
