package testcluster_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// latencyFull runs the latency benchmark at full size and writes docs/benchmarks/raw.
var latencyFull = os.Getenv("WARMROUTE_BENCH_LATENCY") == "1"

// latencyPlan is how much of each part is run. A part ends early when its time is over;
// the report says how many rounds it had.
type latencyPlan struct {
	warmUp, rounds map[string]int // by size
	slowRounds     int
	eventRounds    int
	events, pace   int // of a paced stream; microseconds between them
	budget         time.Duration
	tokenize       string // --tokenize-timeout
}

var (
	latencySizes = []struct {
		name  string
		bytes int
	}{{"1 KB", 1 << 10}, {"300 KB", 300 << 10}}

	fullLatency = latencyPlan{
		warmUp: map[string]int{"1 KB": 50, "300 KB": 20}, rounds: map[string]int{"1 KB": 1000, "300 KB": 400},
		slowRounds: 30, eventRounds: 25, events: 100, pace: 1000, budget: 35 * time.Second, tokenize: "50ms",
	}
	tinyLatency = latencyPlan{
		rounds:     map[string]int{"1 KB": 2, "300 KB": 2},
		slowRounds: 1, eventRounds: 1, events: 5, pace: 100, budget: 10 * time.Second, tokenize: "20s",
	}
)

// arm is one way from the client to the engine.
type arm struct {
	name    string
	wire    *wire
	path    string
	process *process   // that lies between; nil for none
	proxy   *liveProxy // process, where it is warmroute
}

const chatPath = "/v1/chat/completions"

// The turns of a conversation, which differ in what a tokenizer's cache knows.
var latencyTurns = []string{"new conversation", "next turn", "same again"}

// TestBenchLatency measures what the proxy adds to the time to the first token. All arms
// take turns request by request, in random order, over one client; each is a process of
// its own. Without WARMROUTE_BENCH_LATENCY=1 it only checks that every arm gives the same
// bytes and that each mode is what it is called.
func TestBenchLatency(t *testing.T) {
	plan := tinyLatency
	if latencyFull {
		plan = fullLatency
	}
	b := newLatencyBench(t, plan)
	for _, size := range latencySizes {
		b.turns(size.name, size.bytes, b.quick, plan.rounds[size.name], plan.warmUp[size.name])
	}
	b.events()
	for _, size := range latencySizes {
		b.turns(size.name, size.bytes, []*arm{b.direct, b.slow}, plan.slowRounds, 0)
	}
	b.sources()
	if latencyFull {
		b.report()
	}
}

// latencyBench are the running processes and what was measured.
type latencyBench struct {
	t            testing.TB
	plan         latencyPlan
	direct, slow *arm
	quick        []*arm // all but slow
	rand         *rand.Rand
	cells        []*cell
	load         string // at the start
}

func newLatencyBench(t testing.TB, plan latencyPlan) *latencyBench {
	t.Helper()
	b := &latencyBench{t: t, plan: plan, rand: rand.New(rand.NewPCG(1, 1)), load: loadAverage()}
	plain, tokens, slow := b.engine("a")
	plain2, tokens2, slow2 := b.engine("b")

	b.direct = &arm{name: "direct", wire: dial(t, plain), path: chatPath}
	reverse := "127.0.0.1:" + strconv.Itoa(freePort(t))
	rp := helper(t, "TestLatencyHelper", "reverse", "reverse", reverse, plain)
	b.start(rp, "http://"+reverse+"/health")
	b.quick = []*arm{
		b.direct,
		{name: "net/http reverse proxy", wire: dial(t, "http://"+reverse), path: chatPath, process: rp},
		b.warmroute("warmroute, text", plain, plain2),
		b.warmroute("warmroute, engine tokens", tokens, tokens2),
		{name: "the engine's tokenizer alone", wire: dial(t, tokens), path: chatPath + "/render"},
	}
	b.slow = b.warmroute("warmroute, slow tokenizer", slow, slow2)
	return b
}

// engine starts a scripted engine and returns its three addresses.
func (b *latencyBench) engine(name string) (plain, tokens, slow string) {
	var addr [3]string
	for i := range addr {
		addr[i] = "127.0.0.1:" + strconv.Itoa(freePort(b.t))
	}
	b.start(helper(b.t, "TestLatencyHelper", "engine-"+name, "engine", addr[0], addr[1], addr[2]), "http://"+addr[2]+"/health")
	return "http://" + addr[0], "http://" + addr[1], "http://" + addr[2]
}

func (b *latencyBench) start(p *process, url string) {
	b.t.Helper()
	p.start()
	if err := p.ready(func() error { return getOK(url) }); err != nil {
		b.t.Fatal(err)
	}
}

// warmroute starts a proxy over two addresses of engines.
func (b *latencyBench) warmroute(name, first, second string) *arm {
	b.t.Helper()
	p := startProxy(b.t, "proxy", "--worker", first+",id=a", "--worker", second+",id=b", "--tokenize-timeout", b.plan.tokenize, "--log-level", "error")
	waitFor(b.t, name+" to know both workers", func() error { return getOK(p.admin + "/readyz") })
	waitFor(b.t, name+" to know both workers", p.bothHealthy)
	return &arm{name: name, wire: dial(b.t, p.url), path: chatPath, process: p.process, proxy: p}
}

// turns plays conversations of three turns: each turn goes through every arm, in random
// order.
func (b *latencyBench) turns(size string, bytes int, arms []*arm, rounds, warmUp int) {
	b.t.Helper()
	cells := map[string]map[*arm]*cell{}
	for _, turn := range latencyTurns {
		cells[turn] = map[*arm]*cell{}
		for _, a := range arms {
			c := &cell{Size: size, Turn: turn, Arm: a.name, direct: cells[turn][b.direct]}
			cells[turn][a] = c
			b.cells = append(b.cells, c)
		}
	}
	until := time.Now().Add(b.plan.budget)
	var cpu map[*arm]time.Duration
	requests := 0
	for round := -warmUp; round < rounds && time.Now().Before(until); round++ {
		if round == 0 {
			cpu = cpuTimes(arms)
		}
		talk := newTalk(b.rand.Uint64(), bytes)
		for _, turn := range latencyTurns {
			if turn == "next turn" {
				talk.say("assistant", 0)
				talk.say("user", 0)
			}
			b.turn(talk.body(), arms, func(a *arm, d time.Duration) {
				if round >= 0 {
					cells[turn][a].add(d)
				}
			})
			if round >= 0 {
				requests++
			}
		}
	}
	for a, after := range cpuTimes(arms) {
		if a == b.slow {
			continue // it also answered for its metrics
		}
		for _, turn := range latencyTurns {
			cells[turn][a].CPUMicros = float64((after - cpu[a]).Nanoseconds()) / 1000 / float64(max(requests, 1))
		}
	}
}

// turn sends a body through every arm and compares their answers.
func (b *latencyBench) turn(body []byte, arms []*arm, took func(*arm, time.Duration)) {
	b.t.Helper()
	var want []byte
	for _, i := range b.rand.Perm(len(arms)) {
		a := arms[i]
		r, err := a.wire.post(a.path, "X-Bench-Events: 4\r\n", body)
		if err != nil || r.status != 200 {
			b.t.Fatalf("%s: status %d, %v: %.300s", a.name, r.status, err, r.body)
		}
		took(a, r.ttft)
		if a.path == chatPath {
			if want == nil {
				want = r.body
			}
			if !bytes.Equal(r.body, want) {
				b.t.Fatalf("%s answers other bytes than the arm before:\n%s\n%s", a.name, r.body, want)
			}
		}
		if a == b.slow { // the next turn comes when the late tokens of this one have
			waitFor(b.t, "the slow tokenizer", a.tokenized)
		}
	}
}

// tokenized is an error while the engine tokenizes for the proxy.
func (a *arm) tokenized() error {
	m, err := a.proxy.metrics()
	if err == nil && m.sum("warmroute_tokenize_seconds_count") < m.sum("warmroute_prefix_cache_misses_total") {
		err = errTokenizing
	}
	return err
}

// events measures how much later each event of a paced stream arrives than its engine
// wrote it.
func (b *latencyBench) events() {
	b.t.Helper()
	header := "X-Bench-Events: " + strconv.Itoa(b.plan.events) + "\r\nX-Bench-Pace: " + strconv.Itoa(b.plan.pace) + "\r\n"
	cells := map[*arm]*cell{}
	for _, a := range b.quick {
		if a.path == chatPath {
			cells[a] = &cell{Size: "1 KB", Turn: "events", Arm: a.name, direct: cells[b.direct]}
			b.cells = append(b.cells, cells[a])
		}
	}
	until := time.Now().Add(b.plan.budget)
	for round := 0; round < b.plan.eventRounds && time.Now().Before(until); round++ {
		body := newTalk(b.rand.Uint64(), 1<<10).body()
		for _, i := range b.rand.Perm(len(b.quick)) {
			a := b.quick[i]
			if cells[a] == nil {
				continue
			}
			r, err := a.wire.post(a.path, header, body)
			if err != nil || len(r.delays) != b.plan.events {
				b.t.Fatalf("%s: %d of %d events, %v: %.300s", a.name, len(r.delays), b.plan.events, err, r.body)
			}
			for _, d := range r.delays {
				cells[a].add(d)
			}
		}
	}
}
