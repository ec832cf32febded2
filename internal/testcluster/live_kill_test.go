package testcluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// liveCluster is two proxies that share the events of some workers over one NATS server.
type liveCluster struct {
	nats    *natsServer
	workers []*liveWorker
	relays  []*process
	proxies []*liveProxy
}

// startCluster runs everything and waits until both proxies know every worker.
func startCluster(t *testing.T, workers int, workerArgs ...string) *liveCluster {
	t.Helper()
	c := &liveCluster{nats: startNATS(t)}
	args := []string{"--nats", c.nats.url()}
	for i := range workers {
		w := startWorker(t, "w"+strconv.Itoa(i+1), eventsAndReplay, workerArgs...)
		c.workers = append(c.workers, w)
		c.relays = append(c.relays, startRelay(t, w, c.nats))
		args = append(args, "-w", w.flag(false))
	}
	for i := range 2 {
		c.proxies = append(c.proxies, startProxy(t, "proxy"+strconv.Itoa(i+1), args...))
	}
	c.waitKnown(t)
	return c
}

// waitKnown waits until every proxy is ready and follows every worker completely. A
// worker that has sent no event is not complete.
func (c *liveCluster) waitKnown(t *testing.T) {
	t.Helper()
	for i, w := range c.workers {
		chat := newChat(uint64(i), 10, 2)
		chat.stream = false
		chat.say(200)
		u := newUser()
		if a := u.turn(t.Context(), w.url, chat); a.outcome != whole {
			t.Fatalf("%s, asked directly: %v: %s", w.id, a.outcome, a.reason)
		}
		u.close()
	}
	for _, p := range c.proxies {
		waitFor(t, p.name+" to know every worker", func() error {
			if err := p.isReady(); err != nil {
				return err
			}
			return p.knows("complete", c.workers...)
		})
	}
}

// tally counts answers by outcome and keeps what went wrong.
type tally struct {
	mu      sync.Mutex
	counts  [3]int
	reasons []string // of truncated answers
	failure string   // the last one
}

func (n *tally) add(a answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts[a.outcome]++
	switch a.outcome {
	case truncated:
		n.reasons = append(n.reasons, a.reason)
	case failed:
		n.failure = a.reason
	}
}

func (n *tally) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("%d whole, %d failed, %d truncated", n.counts[whole], n.counts[failed], n.counts[truncated])
}

// load is how much clients ask for.
type load struct {
	clients, words, say, reply int
	turns                      int
	think                      time.Duration
}

// run plays conversations until ctx ends and returns when every client has its last
// answer. Turn by turn a client alternates between the proxies, and between streams and
// whole bodies. A failed turn ends its conversation.
func (l load) run(ctx context.Context, t *testing.T, seed uint64, proxies []*liveProxy) *tally {
	n := new(tally)
	var wg sync.WaitGroup
	for i := range l.clients {
		wg.Go(func() {
			u := newUser()
			defer u.close()
			for talk := uint64(0); ctx.Err() == nil; talk++ {
				c := newChat(seed+uint64(i)<<32+talk<<8, l.words, l.reply)
				for turn := 0; turn < l.turns && ctx.Err() == nil; turn++ {
					c.stream, c.usage = (i+turn)%4 != 0, turn%2 == 0
					c.say(l.say)
					p := proxies[(i+turn)%len(proxies)]
					a := u.turn(t.Context(), p.url, c)
					n.add(a)
					if a.outcome != whole {
						sleep(ctx, 50*time.Millisecond) // a dead proxy refuses at once
						break
					}
					sleep(ctx, l.think)
				}
			}
		})
	}
	wg.Wait()
	return n
}

// testSeed returns the seed of a random test; WARMROUTE_SEED repeats one.
func testSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64N(1 << 32)
	if v := os.Getenv("WARMROUTE_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("WARMROUTE_SEED=%s is not a number", v)
		}
	}
	t.Logf("seed %d (WARMROUTE_SEED=%d repeats its choices, not its timing)", seed, seed)
	return seed
}

// resources are what a proxy holds, as its metrics say.
type resources struct{ goroutines, files, inflight float64 }

func (p *liveProxy) resources() (r resources, err error) {
	m, err := p.metrics()
	if err != nil {
		return r, err
	}
	return resources{m.sum("go_goroutines"), m.sum("process_open_fds"), m.sum("warmroute_proxy_inflight_requests") + m.sum("warmroute_router_inflight")}, nil
}

// TestLive_KillAnything ends relays, workers, proxies and NATS with SIGKILL at random under
// multi-turn load and starts them again, and freezes some. No answer may look finished and not be, and
// afterwards nothing may be left of it: no request in flight, no goroutine, no file, and
// an index that equals the engines.
func TestLive_KillAnything(t *testing.T) {
	duration := 10 * time.Second
	if soak {
		duration = time.Minute
	}
	seed := testSeed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	// The same seed everywhere: which worker answers does not change the text.
	c := startCluster(t, 3, "--speed-up", "2", "--seed", "1")
	l := load{clients: 16, words: 800, say: 60, reply: 40, turns: 6, think: 50 * time.Millisecond}

	// What is normal: after the same load without kills, clients gone.
	calm, cancel := context.WithTimeout(t.Context(), time.Second)
	if n := l.run(calm, t, seed+1, c.proxies); n.counts[whole] == 0 || n.counts[failed]+n.counts[truncated] > 0 {
		t.Fatalf("without kills: %v: %s %q", n, n.failure, n.reasons)
	}
	cancel()
	normal := make([]resources, len(c.proxies))
	for i, p := range c.proxies {
		waitFor(t, p.name+" to be at rest", func() (err error) {
			normal[i], err = p.resources()
			if err == nil && normal[i].inflight != 0 {
				err = fmt.Errorf("%v requests in flight", normal[i].inflight)
			}
			return err
		})
	}
	files := make([]int, len(c.relays))
	for i, relay := range c.relays {
		files[i] = openFiles(relay.pid())
	}

	victims := []*process{c.proxies[0].process, c.proxies[1].process, c.nats.process}
	for i := range c.workers {
		victims = append(victims, c.workers[i].process, c.relays[i])
	}
	under, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	kills := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for first := true; ; first = false {
			pause := 200*time.Millisecond + rand.N(800*time.Millisecond)
			if first {
				pause = 500 * time.Millisecond
			}
			sleep(under, pause)
			if under.Err() != nil {
				return
			}
			v := victims[r.IntN(len(victims))]
			down := time.Duration(r.IntN(600)) * time.Millisecond
			if r.IntN(5) == 0 {
				t.Logf("freeze %s for %v", v.name, down)
				v.signal(syscall.SIGSTOP)
				sleep(under, down)
				v.signal(syscall.SIGCONT)
				continue
			}
			t.Logf("kill %s for %v", v.name, down)
			v.kill()
			sleep(under, down)
			v.start()
			kills++
		}
	})
	n := l.run(under, t, seed, c.proxies)
	wg.Wait()
	t.Logf("%d kills: %v; last failure: %s", kills, n, n.failure)
	for _, reason := range n.reasons {
		t.Errorf("an answer looked finished and was not: %s", reason)
	}
	if n.counts[whole] < 50 || kills < 3 {
		t.Errorf("too little happened: %d kills, %v", kills, n)
	}

	for _, w := range c.workers {
		waitFor(t, w.name, w.answers)
	}
	for _, p := range c.proxies {
		waitFor(t, p.name, p.lives)
	}
	c.waitKnown(t)
	chat := newChat(seed, 500, 10)
	for turn := range 6 {
		chat.say(20)
		u := newUser()
		if a := u.turn(t.Context(), c.proxies[turn%2].url, chat); a.outcome != whole {
			t.Errorf("after the kills: %v: %s", a.outcome, a.reason)
		}
		u.close()
	}
	chat.say(20)
	for i, p := range c.proxies {
		settle(t, p, c.workers, chat.body())
		const slack = 10
		waitFor(t, p.name+" to be back at what is normal", func() error {
			now, err := p.resources()
			if err == nil && (now.inflight != 0 || now.goroutines > normal[i].goroutines+slack || now.files > normal[i].files+slack) {
				err = fmt.Errorf("%+v, normal is %+v", now, normal[i])
			}
			return err
		})
	}
	for i, relay := range c.relays {
		waitFor(t, relay.name+" to be back at what is normal", func() error {
			if now := openFiles(relay.pid()); now > files[i]+4 {
				return fmt.Errorf("%d open files, normal are %d", now, files[i])
			}
			return nil
		})
	}
}
