package testcluster_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// overheadFull runs the overhead benchmark at full size, with nginx, and writes
// docs/benchmarks/raw.
var overheadFull = os.Getenv("WARMROUTE_OVERHEAD") == "1"

var cpus = runtime.GOMAXPROCS(0)

// overheadPlan is how much of each part is run.
type overheadPlan struct {
	rounds                int
	slice                 time.Duration
	pacedRounds           int
	pacedStreams, pacedBy int // streams, and events of each
	held                  int // open streams for the memory of one
}

var (
	fullOverhead = overheadPlan{rounds: 11, slice: 250 * time.Millisecond, pacedRounds: 16, pacedStreams: 200, pacedBy: 50, held: 5000}
	tinyOverhead = overheadPlan{rounds: 1, slice: time.Millisecond, pacedRounds: 1, pacedStreams: 5, pacedBy: 5, held: 20}
)

const eventPace = 20 * time.Millisecond

// overheadLoad is one kind of request of a closed loop.
type overheadLoad struct {
	name    string
	clients int
	ask
	rate bool // the machine is saturated: it is about requests/s, else about latency
}

// ask is a request: the size of its body, and what the engine answers with.
type ask struct {
	bytes  int
	events int           // with content; 0 where the answer comes whole
	first  time.Duration // until the answer begins
	pace   time.Duration // between events
}

// The loads. An engine that answers at once shows all of a proxy's own time; one that takes
// 5 ms is what a short prefill takes at least. Where events follow each other too fast for
// anybody to be woken in between, the first one's time says nothing, so they are paced.
var overheadLoads = []overheadLoad{
	{"2 KB, stream, engine at once", 1, ask{2 << 10, 4, 0, time.Millisecond}, false},
	{"32 KB, stream, engine at once", 1, ask{32 << 10, 4, 0, time.Millisecond}, false},
	{"8 KB, whole, engine at once", 1, ask{8 << 10, 0, 0, 0}, false},
	{"2 KB, stream, engine takes 5 ms", 8, ask{2 << 10, 4, 5 * time.Millisecond, time.Millisecond}, false},
	{"32 KB, stream, engine takes 5 ms", 8, ask{32 << 10, 4, 5 * time.Millisecond, time.Millisecond}, false},
	{"8 KB, whole, engine takes 5 ms", 8, ask{8 << 10, 0, 5 * time.Millisecond, 0}, false},
	{"8 KB, stream of 16 events, saturated", 128, ask{8 << 10, 16, 0, 2 * time.Millisecond}, true},
	{"8 KB, whole, saturated", 32, ask{8 << 10, 0, 0, 0}, true},
}

// overheadArm is one way from the client to the engine.
type overheadArm struct {
	name, address string
	pids          func() []int // of what lies between
	wires         []*quickWire
}

// The arms. The first has nothing between.
const (
	armDirect = iota
	armFastHTTP
	armReverse
	armNginx
	armWarmroute
)

var overheadArmNames = [...]string{"direct", "fasthttp pass-through", "net/http reverse proxy", "nginx", "warmroute"}

// overheadBench are the running processes and what was measured.
type overheadBench struct {
	t     *testing.T
	plan  overheadPlan
	rand  *rand.Rand
	arms  []*overheadArm // by the constants above; nil for nginx where it is not run
	proxy *liveProxy
	load  string
	out   strings.Builder
	raw   []any    // rawLoad and rawPaced
	lost  []string // limits that do not hold
}

// TestBenchOverhead measures what warmroute with its default features costs beside proxies
// that do nothing else. All arms are processes of their own and take turns in short slices,
// in random order, so that whatever else the machine does hits all of them alike. Without
// WARMROUTE_OVERHEAD=1 it only checks that every arm but nginx gives the same bytes.
func TestBenchOverhead(t *testing.T) {
	b := newOverheadBench(t)
	ok := t.Run("same", b.same)
	ok = ok && t.Run("load", b.closedLoops)
	ok = ok && t.Run("paced", b.pacedStreams)
	ok = ok && t.Run("memory", b.memory)
	if ok && overheadFull {
		b.write()
	}
}

func newOverheadBench(t *testing.T) *overheadBench {
	t.Helper()
	b := &overheadBench{t: t, plan: tinyOverhead, rand: rand.New(rand.NewPCG(5, 5)), load: loadAverage(), arms: make([]*overheadArm, len(overheadArmNames))}
	if overheadFull {
		b.plan = fullOverhead
	}
	address := func() string { return "127.0.0.1:" + strconv.Itoa(freePort(t)) }
	first, second := address(), address()
	b.add(armDirect, first, b.helper("engine", first, second))
	b.add(armFastHTTP, address(), nil)
	b.arms[armFastHTTP].pids = b.helper("fasthttp", b.arms[armFastHTTP].address, first)
	b.add(armReverse, address(), nil)
	b.arms[armReverse].pids = b.helper("reverse", b.arms[armReverse].address, first)
	if overheadFull {
		b.add(armNginx, address(), nil)
		b.arms[armNginx].pids = startNginx(t, b.arms[armNginx].address, first)
	}
	config := filepath.Join(t.TempDir(), "warmroute.yaml")
	yaml := fmt.Sprintf("auth:\n  keys:\n  - {name: bench, sha256: %x, max_inflight: 100000, requests_per_minute: 100000000, tokens_per_minute: 1000000000}\nrouting: {max_inflight: 16384}\n", sha256.Sum256([]byte(overheadKey)))
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	b.proxy = startProxy(t, "warmroute", "--config", config, "--worker", "http://"+first+",id=a", "--worker", "http://"+second+",id=b", "--log-level", "error")
	waitFor(t, "warmroute to know both workers", b.proxy.bothHealthy)
	b.add(armWarmroute, strings.TrimPrefix(b.proxy.url, "http://"), func() []int { return []int{b.proxy.pid()} })
	return b
}

func (b *overheadBench) add(i int, address string, pids func() []int) {
	b.arms[i] = &overheadArm{name: overheadArmNames[i], address: address, pids: pids}
}

// helper starts this test binary as one of the arms.
func (b *overheadBench) helper(name, listen, other string) (pids func() []int) {
	b.t.Helper()
	p := helper(b.t, "TestOverheadHelper", name, name, listen, other)
	p.start()
	if err := p.ready(func() error { return getOK("http://" + listen + "/health") }); err != nil {
		b.t.Fatal(err)
	}
	return func() []int { return []int{p.pid()} }
}

// cpuTime returns what the arm's processes have computed.
func (a *overheadArm) cpuTime() (d time.Duration) {
	for _, pid := range a.pids() {
		d += processCPU(pid)
	}
	return d
}

// connect makes n connections to the arm, which it keeps.
func (a *overheadArm) connect(t *testing.T, n int) []*quickWire {
	t.Helper()
	for len(a.wires) < n {
		c, err := dialQuick(a.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.conn.Close() })
		a.wires = append(a.wires, c)
	}
	return a.wires[:n]
}

// inTurn calls f for each arm, in random order.
func (b *overheadBench) inTurn(f func(i int, a *overheadArm)) {
	for _, i := range b.rand.Perm(len(b.arms)) {
		if b.arms[i] != nil {
			f(i, b.arms[i])
		}
	}
}

// same checks that the arms give the same answers.
func (b *overheadBench) same(t *testing.T) {
	for _, l := range overheadLoads {
		l.pace = 0 // the times of a paced stream differ
		r := newRequest(l.ask)
		want := ""
		b.inTurn(func(_ int, a *overheadArm) {
			c := a.connect(b.t, 1)[0]
			if err := c.do(r.next(), func() {}); err != nil {
				t.Fatalf("%s: %s: %v", a.name, l.name, err)
			}
			if want == "" {
				want = string(c.body)
			}
			if string(c.body) != want || want == "" {
				t.Fatalf("%s: %s: answers differ:\n%q\n%q", a.name, l.name, c.body, want)
			}
		})
	}
	v, err := b.proxy.workers()
	if err != nil || len(v.Workers) != 2 {
		t.Fatalf("%d workers, %v", len(v.Workers), err)
	}
	if c, err := dialQuick(b.arms[armWarmroute].address); err != nil {
		t.Fatal(err)
	} else if err := c.do([]byte("GET /v1/models HTTP/1.1\r\nHost: bench\r\n\r\n"), func() {}); err == nil || !strings.Contains(err.Error(), "401") {
		t.Fatalf("without a key warmroute answers %v", err)
	}
}

// closedLoops measures latency, rate and CPU time of requests that follow each other at once.
func (b *overheadBench) closedLoops(t *testing.T) {
	for _, l := range overheadLoads {
		r, got := newRequest(l.ask), newMeasured(len(b.arms))
		for range b.plan.rounds {
			b.inTurn(func(i int, a *overheadArm) {
				wires := a.connect(b.t, l.clients)
				if _, err := a.closedLoop(wires, r, b.plan.slice/20); err != nil { // its connections to the engine
					t.Fatalf("%s: %v", a.name, err)
				}
				s, err := a.closedLoop(wires, r, b.plan.slice)
				if err != nil {
					t.Fatalf("%s: %v", a.name, err)
				}
				got.add(i, s)
			})
		}
		b.reportLoad(l, got)
	}
}

// pacedStreams measures how late events arrive while many streams are open.
func (b *overheadBench) pacedStreams(t *testing.T) {
	r := newRequest(ask{2 << 10, b.plan.pacedBy, 0, eventPace})
	p50, p99, cpu := newSeries(len(b.arms)), newSeries(len(b.arms)), newSeries(len(b.arms))
	for range b.plan.pacedRounds {
		b.inTurn(func(i int, a *overheadArm) {
			before := a.cpuTime()
			delays, err := paced(a.connect(b.t, b.plan.pacedStreams), r, b.plan.pacedBy, eventPace)
			if err != nil {
				t.Fatalf("%s: %v", a.name, err)
			}
			p50[i] = append(p50[i], quantile(delays, .5))
			p99[i] = append(p99[i], quantile(delays, .99))
			cpu[i] = append(cpu[i], micros(a.cpuTime()-before)/float64(b.plan.pacedStreams*b.plan.pacedBy))
		})
	}
	b.reportPaced(p50, p99, cpu)
}

// memory measures what an open stream holds in the proxy.
func (b *overheadBench) memory(t *testing.T) {
	a := b.arms[armWarmroute]
	r := newRequest(ask{4 << 10, 1000, 0, 2 * time.Second})
	closeAll, err := hold(a.address, r, min(100, b.plan.held)) // what the first streams set up stays
	closeAll()
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first streams to end", b.quiet)
	before := b.footprint(t)
	closeAll, err = hold(a.address, r, b.plan.held)
	defer closeAll()
	if err != nil {
		t.Fatal(err)
	}
	b.reportMemory(before, b.footprint(t))
}

// quiet is an error while warmroute answers requests.
func (b *overheadBench) quiet() error {
	m, err := b.proxy.metrics()
	if n := m.sum("warmroute_proxy_inflight_requests"); err == nil && n > 0 {
		return fmt.Errorf("%v requests are open", n)
	}
	return err
}

// holdings is the memory of a process, in bytes.
type holdings struct{ rss, heap, stack float64 }

// footprint returns warmroute's memory after a garbage collection.
func (b *overheadBench) footprint(t *testing.T) (h holdings) {
	t.Helper()
	for range 2 { // what a pool holds goes with the second
		raw, err := get(b.proxy.admin + "/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			t.Fatal(err)
		}
		h.heap, h.stack = heapFigure(raw, "HeapAlloc"), heapFigure(raw, "Stack")
	}
	h.rss = residentBytes(b.proxy.pid())
	return h
}

// ran returns the arms that ran.
func (b *overheadBench) ran() (arms []int) {
	for i, a := range b.arms {
		if a != nil {
			arms = append(arms, i)
		}
	}
	return slices.Clip(arms)
}
