package testcluster_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// chaosIdle is the proxy's idle limit, around which links stall.
const chaosIdle = 2 * time.Second

// The documented retries: after a refusal (502, 503, 504) another worker, two at most; and
// once more in all after a worker died without a word.
const (
	chaosAsked  = 4 // requests that reach workers for one of a client
	chaosWorked = 2 // of these, those that may have begun to generate
)

// workerFaults are what is posted to /fault of a worker for a while.
var workerFaults = []string{
	`{"status":500,"rate":0.5}`,
	`{"status":502,"rate":0.5}`,
	`{"status":503,"retry_after":1,"rate":0.5}`,
	`{"status":429,"retry_after":1,"rate":0.5}`,
	`{"status":400,"rate":0.2}`,
	`{"reset":true,"rate":0.5}`,
	`{"hang_headers":true,"rate":0.2}`,
	`{"hang_after":7,"rate":0.3}`,
	`{"die_after":1,"rate":0.5}`,
	`{"die_after":9,"rate":0.5}`,
	`{"slow":6}`,
	`{"health_status":500}`,
	`{"event_delay_ms":300}`,
	`{"reorder_events":true}`,
	`{"skip_events":3}`,
	`{"drop_events":5}`,
	`{"restart":true}`,
	`{"crash":true,"down_ms":300}`,
}

// chaos is a proxy with links on all its sides.
//
//	clients ══▶ proxy ══▶ worker × 4 ──ZMQ──▶ relay (two of them), proxy (the others)
//	              ║                             ║
//	              ╚═══════════ NATS ════════════╝      ══ a link
type chaos struct {
	*testing.T
	nats      *natsServer
	workers   []*liveWorker
	reference *liveWorker
	proxy     *liveProxy
	links     []*link // to the front, to NATS, to the workers
	taps      *taps
	faults    *counts
}

func startChaos(t *testing.T, seed uint64) *chaos {
	const mean = 80_000 // bytes from mishap to mishap, a few answers
	c := &chaos{T: t, faults: new(counts), taps: &taps{seen: map[string][]*exchange{}}}
	// The same seed everywhere: which worker answers does not change a byte of the text.
	c.reference = startWorker(t, "reference", noEvents, "--speed-up", "1000", "--seed", "1")
	c.nats = startNATS(t)
	nats := startLink(t, "nats", "127.0.0.1:"+strconv.Itoa(c.nats.port), seed+1, 2*mean, c.faults, nil)
	via := &natsServer{process: c.nats.process, port: port(nats)}
	args := []string{"--nats", via.url(), "--idle-timeout", chaosIdle.String(), "--first-byte-timeout", (3 * chaosIdle).String(),
		"--connect-timeout", "1s", "--speculative-prefill", "on", "--log-level", "error"}
	links := []*link{nats}
	for i := range 4 {
		id := "w" + strconv.Itoa(i+1)
		w := startWorker(t, id, eventsAndReplay, "--seed", "1", "--speed-up", "0.5")
		l := startLink(t, "worker", w.url[len("http://"):], seed+10+uint64(i), mean, c.faults, &tap{c.taps, id})
		far := *w
		far.url = "http://127.0.0.1:" + strconv.Itoa(port(l))
		if i%2 == 0 {
			startRelay(t, &far, via, "--log-level", "error")
		}
		args = append(args, "-w", far.flag(i%2 == 1))
		c.workers, links = append(c.workers, w), append(links, l)
	}
	c.proxy = startProxy(t, "proxy", args...)
	c.links = append([]*link{startLink(t, "client", c.proxy.url[len("http://"):], seed, mean, c.faults, nil)}, links...)
	c.known()
	return c
}

func port(l *link) int {
	n, _ := strconv.Atoi(l.Addr().String()[len("127.0.0.1:"):])
	return n
}

// known waits until the proxy takes requests and follows every worker's events.
func (c *chaos) known() {
	c.Helper()
	c.touch(1) // a worker that has sent no event is not followed
	waitFor(c, "the proxy to know every worker", func() error {
		if err := c.proxy.isReady(); err != nil {
			return err
		}
		return c.proxy.knows("complete", c.workers...)
	})
}

// renew restarts the engines: events that an engine has lost are lost for good, also those
// that it was told to lose and has not sent yet.
func (c *chaos) renew() {
	c.Helper()
	c.touch(12)
	for _, w := range c.workers {
		waitFor(c, w.id, func() error { return setFault(w, `{"restart":true}`) })
	}
}

// touch has every worker compute so many prompts of a few blocks, one after the other.
func (c *chaos) touch(n int) {
	c.Helper()
	for _, w := range c.workers {
		u := newUser()
		for range n {
			chat := newChat(rand.Uint64(), 150, 2)
			waitFor(c, w.id+" to answer", func() error {
				if a := u.turn(c.Context(), w.url, chat); a.outcome != whole {
					return fmt.Errorf("%v: %s", a.outcome, a.reason)
				}
				return nil
			})
		}
		u.close()
	}
}

// crowd returns clients that talk to the proxy over its link.
func (c *chaos) crowd(name string, clients int, seed uint64) *crowd {
	return &crowd{clients: clients, front: c.links[0].Addr().String(), reference: c.reference.url[len("http://"):],
		taps: c.taps, seed: seed, name: name, tally: new(tally), failures: new(counts)}
}

// strike lets things go wrong until ctx ends, then mends them all.
func (c *chaos) strike(ctx context.Context, seed uint64) {
	for _, l := range c.links {
		l.on.Store(true)
	}
	var wg sync.WaitGroup
	for i, w := range c.workers {
		r := rand.New(rand.NewPCG(seed, 100+uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				sleep(ctx, time.Duration(500+r.IntN(2500))*time.Millisecond)
				c.strikeWorker(ctx, w, r)
			}
			waitFor(c, w.id+" to be well", func() error { return setFault(w, "{}") })
		})
	}
	wg.Go(func() {
		for r := rand.New(rand.NewPCG(seed, 99)); ctx.Err() == nil; {
			sleep(ctx, time.Duration(1000+r.IntN(3000))*time.Millisecond)
			down := time.Duration(r.IntN(1000)) * time.Millisecond
			if r.IntN(3) > 0 {
				c.faults.add("nats disconnect")
				c.links[1].cut()
				continue
			}
			c.faults.add("nats restart")
			c.nats.kill()
			sleep(ctx, down)
			c.nats.start()
		}
	})
	wg.Wait()
	for _, l := range c.links {
		l.on.Store(false)
	}
}

// strikeWorker makes a worker misbehave for a while, or kills it.
func (c *chaos) strikeWorker(ctx context.Context, w *liveWorker, r *rand.Rand) {
	for_ := time.Duration(100+r.IntN(500)) * time.Millisecond
	if r.IntN(20) == 0 {
		c.faults.add("worker kill")
		w.kill()
		sleep(ctx, for_)
		w.start()
		waitFor(c, w.id, w.answers)
		return
	}
	fault := workerFaults[r.IntN(len(workerFaults))]
	if setFault(w, fault) == nil {
		c.faults.add("worker " + fault)
	}
	sleep(ctx, for_)
	_ = setFault(w, "{}") // it may be down; the last one counts
}

func setFault(w *liveWorker, fault string) error {
	resp, err := quickClient.Post(w.url+"/fault", "application/json", bytes.NewReader([]byte(fault)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("/fault of %s: %s", w.id, resp.Status)
	}
	return nil
}

// footprint is what the proxy holds at rest.
type footprint struct {
	resources
	heap float64 // bytes, after a collection
}

func (c *chaos) footprint() (f footprint, err error) {
	if err := getOK(c.proxy.admin + "/debug/pprof/heap?gc=1"); err != nil {
		return f, err
	}
	m, err := c.proxy.metrics()
	if err != nil {
		return f, err
	}
	f.heap = m.sum("go_memstats_heap_alloc_bytes")
	f.resources, err = c.proxy.resources()
	if err == nil && f.inflight+m.sum("warmroute_prefill_inflight") != 0 {
		err = fmt.Errorf("%v requests in flight", f.inflight)
	}
	return f, err
}

// TestChaos lets clients, links, workers and NATS misbehave under 200 concurrent
// conversations. Every answer is the worker's bytes and the right text, or an error that
// no client can overlook; no request is generated more often than retries allow; and
// nothing stays behind in the proxy. WARMROUTE_CHAOS=1 runs it at full size.
func TestChaos(t *testing.T) {
	full := os.Getenv("WARMROUTE_CHAOS") == "1"
	calm, storm, clients, faults := 500*time.Millisecond, 4*time.Second, 60, 20
	if full {
		calm, storm, clients, faults = 5*time.Second, 3*time.Minute, 200, 1000
	}
	seed := testSeed(t)
	c := startChaos(t, seed)

	before := c.crowd("calm", clients, seed+1)
	during(t, calm, before.run)
	if n := before.tally; n.counts[whole] < clients/2 || n.counts[failed]+n.counts[truncated] > 0 {
		t.Fatalf("without faults: %v: %q %q", n, n.failure, n.reasons)
	}
	var normal footprint
	waitFor(t, "the proxy to be at rest", func() (err error) { normal, err = c.footprint(); return err })

	under := c.crowd("storm", clients, seed+2)
	during(t, storm, func(ctx context.Context) {
		var wg sync.WaitGroup
		wg.Go(func() { c.strike(ctx, seed) })
		under.run(ctx)
		wg.Wait()
	})
	n := c.faults.total()
	t.Logf("%d faults: %v", n, c.faults.m)
	t.Logf("%v; failures: %v", under.tally, under.failures.m)
	for i, reason := range under.tally.reasons {
		if i == 5 {
			t.Errorf("and %d more", len(under.tally.reasons)-i)
			break
		}
		t.Errorf("an answer that is wrong: %s", reason)
	}
	if w := under.tally.counts[whole]; n < faults || w < clients || under.tally.counts[failed] < 10 {
		t.Errorf("too little happened: %d faults, %v", n, under.tally)
	}
	asked, worked := c.taps.generations()
	t.Logf("of one request at most %d reached workers, %d of them not refused", asked, worked)
	if asked > chaosAsked || worked > chaosWorked {
		t.Errorf("a request reached workers %d times, %d of them not refused; %d and %d are allowed", asked, worked, chaosAsked, chaosWorked)
	}

	waitFor(t, "NATS", c.nats.accepts)
	c.renew()
	c.known()
	after := c.crowd("after", clients, seed+3)
	during(t, calm, after.run)
	if n := after.tally; n.counts[whole] < clients/2 || n.counts[failed]+n.counts[truncated] > 0 {
		t.Errorf("after the faults: %v: %q %q", n, n.failure, n.reasons)
	}
	const slack = 10
	waitFor(t, "the proxy to be back at what is normal", func() error {
		now, err := c.footprint()
		if err == nil && (now.goroutines > normal.goroutines+slack || now.files > normal.files+slack || now.heap > 1.5*normal.heap+8<<20) {
			err = fmt.Errorf("%+v, normal is %+v", now, normal)
		}
		if err == nil {
			t.Logf("at rest: %+v before, %+v after", normal, now)
		}
		return err
	})
}

// during runs f with a context of that length.
func during(t *testing.T, d time.Duration, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	f(ctx)
}
