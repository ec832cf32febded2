package proxy

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/upstream"
)

// TestFC68_DeadEngineBehindGoodHealth: over real sockets, one of two workers answers its
// health checks and fails each generation. Its share of the errors ends with the first few,
// and with the first token that it makes again it is back.
func TestFC68_DeadEngineBehindGoodHealth(t *testing.T) {
	var sick atomic.Bool
	w1 := startWorker(t, func(c *call) bool {
		if sick.Load() {
			c.json(500, "", `{"error":{"message":"CUDA out of memory","type":"y"}}`)
			return true
		}
		return echo(c)
	})
	w2 := startWorker(t, echo)
	r := newRig(t, setup{engine: upstream.EngineVLLM, probe: 200 * time.Millisecond}, w1, w2)
	send := func(n int) (bad, first int) {
		for range n {
			resp, _ := r.post("", plainBody)
			if resp.StatusCode != 200 {
				bad++
			}
			if resp.Header.Get("X-Warmroute-Worker") == "w1" {
				first++
			}
		}
		return bad, first
	}
	if bad, first := send(60); bad > 0 || first == 0 {
		t.Fatalf("before: %d bad, %d from w1", bad, first)
	}
	sick.Store(true)
	if bad, first := send(300); bad == 0 || bad > 5 || first > 5 {
		t.Errorf("%d of 300 failed, w1 was asked %d times", bad, first)
	}
	if !strings.Contains(r.logs.String(), "worker is ejected") || r.metric("warmroute_upstream_ejections_total", "worker=w1") != 1 || r.metric("warmroute_upstream_breaker_state") == 0 {
		t.Errorf("the ejection is not told: %s", r.logs)
	}
	if status, report := r.readiness(); status != 200 || report.Status != "degraded" || !strings.Contains(fmt.Sprint(report.Reasons), "w1") {
		t.Errorf("readiness %d %+v", status, report)
	}
	sick.Store(false)
	eventually(t, "w1 is back", func() bool { return r.fleet.Status()[0].Breaker == "closed" })
	if bad, first := send(100); bad > 0 || first == 0 {
		t.Errorf("after: %d bad, %d from w1", bad, first)
	}
	r.stop()
}

// TestFC68_ErrorWithinAStream: an engine that dies says so in the stream and then ends it
// properly. That is a failure too.
func TestFC68_ErrorWithinAStream(t *testing.T) {
	w1 := startWorker(t, func(c *call) bool {
		if c.Header.Get("X-Request-Id") == "" {
			c.json(500, "", "{}") // the fleet's own question
			return true
		}
		c.stream(delta("a"), "data: {\"error\":{\"message\":\"EngineCore died\",\"type\":\"InternalServerError\",\"code\":500}}\n\n", doneEnd)
		return true
	})
	w2 := startWorker(t, func(c *call) bool {
		c.stream(delta("a"), delta("b"), finish, doneEnd)
		return true
	})
	r := newRig(t, setup{engine: upstream.EngineVLLM}, w1, w2)
	failed := 0
	for range 60 {
		if _, body := r.post("", streamBody); strings.Contains(body, "EngineCore") {
			failed++
		}
	}
	if failed == 0 || failed > 5 || r.fleet.Status()[0].Breaker == "closed" {
		t.Errorf("%d of 60 streams failed, %+v", failed, r.fleet.Status()[0])
	}
	r.stop()
}

// churn adds and removes workers of a rig.
type churn struct {
	r       *rig
	t       *testing.T
	live    []*worker
	cfg     []upstream.WorkerConfig
	leaving []*worker // removed, and still streaming
	added   int
}

func (c *churn) add(script func(*call) bool) {
	c.added++
	w := startWorker(c.t, script)
	c.live = append(c.live, w)
	// Few names, so that a name comes back with another address.
	id := fmt.Sprintf("w%d", c.added%12)
	for i, old := range c.cfg {
		if old.ID == id {
			c.cfg[i].URL = "http://" + w.Addr().String()
			c.leaving = append(c.leaving, c.live[i])
			c.live[i] = w
			c.live = c.live[:len(c.live)-1]
			return
		}
	}
	c.cfg = append(c.cfg, upstream.WorkerConfig{ID: id, URL: "http://" + w.Addr().String(), Engine: upstream.EngineOpenAI})
}

func (c *churn) remove() {
	i := rand.IntN(len(c.live))
	c.leaving = append(c.leaving, c.live[i])
	last := len(c.live) - 1
	c.live[i], c.cfg[i] = c.live[last], c.cfg[last]
	c.live, c.cfg = c.live[:last], c.cfg[:last]
}

func (c *churn) apply() {
	if err := c.r.fleet.SetWorkers(append([]upstream.WorkerConfig(nil), c.cfg...)); err != nil {
		c.t.Error(err)
	}
}

// churned counts what clients got.
type churned struct {
	good, refused, wrong atomic.Int32
	slowest              atomic.Int64 // longest silence, ns
}

// client sends one streamed request and reads it.
func (g *churned) client(r *rig) {
	c := r.dial()
	defer c.Close()
	last := time.Now()
	heard := func() {
		now := time.Now()
		if d := int64(now.Sub(last)); d > g.slowest.Load() {
			g.slowest.Store(d)
		}
		last = now
	}
	_, _ = io.WriteString(c, request(pathChat, "", streamBody))
	br := bufio.NewReader(c)
	if _, err := br.Peek(1); err != nil {
		g.wrong.Add(1)
		return
	}
	heard()
	resp, body, err := readResponse(br)
	heard()
	switch {
	case err == nil && resp.StatusCode == 200 && strings.HasSuffix(body, doneEnd) && strings.Count(body, "chunk") == 5:
		g.good.Add(1)
	case err == nil && resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
		g.refused.Add(1)
	default:
		r.t.Logf("%v %v %q", resp, err, body)
		g.wrong.Add(1)
	}
}

// TestFC70_AddAndRemoveStorm: 250 workers come and 150 go within seconds, some under the
// name of one before, while clients send 50 requests a second. Each is answered by a worker,
// whole, or refused clearly; streams of removed workers end well; nothing is left behind.
func TestFC70_AddAndRemoveStorm(t *testing.T) {
	stream := func(c *call) bool {
		c.sse()
		for range 5 {
			c.chunk(delta("token"))
			<-time.After(20 * time.Millisecond)
		}
		c.chunk(finish)
		c.chunk(doneEnd)
		c.end()
		return true
	}
	r := newRig(t, setup{probe: 50 * time.Millisecond}, startWorker(t, stream))
	c := &churn{r: r, t: t}
	for range 3 {
		c.add(stream)
	}
	c.apply()
	var got churned
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				wg.Go(func() { got.client(r) })
			}
		}
	})
	removed := 0
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for c.added < 250 || removed < 150 {
		<-tick.C
		switch {
		case len(c.live) > 2 && removed < 150 && (c.added >= 250 || rand.IntN(5) < 2):
			c.remove()
			removed++
		case c.added < 250:
			c.add(stream)
		default:
			c.add(stream) // the fleet does not run empty
		}
		c.apply()
	}
	close(stop)
	wg.Wait()
	n := got.good.Load() + got.refused.Load() + got.wrong.Load()
	t.Logf("%d requests: %d good, %d refused, %d wrong; longest silence %v; %d added, %d removed", n,
		got.good.Load(), got.refused.Load(), got.wrong.Load(), time.Duration(got.slowest.Load()), c.added, removed)
	if got.wrong.Load() > 0 || n < 250 || got.refused.Load()*10 > n || got.slowest.Load() > int64(10*time.Second) {
		t.Errorf("%d wrong, %d of %d refused, longest silence %v", got.wrong.Load(), got.refused.Load(), n, time.Duration(got.slowest.Load()))
	}
	if err := r.fleet.SetWorkers(c.cfg[:1]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removed workers have no connection", func() bool {
		open := 0
		for _, w := range append(c.leaving, c.live[1:]...) {
			open += int(w.conns.Load())
		}
		return open == 0
	})
	if n := len(r.fleet.Status()); n != 1 {
		t.Errorf("%d workers", n)
	}
	eventually(t, "one series a worker", func() bool {
		return r.series("warmroute_upstream_healthy") == 1 && r.series("warmroute_upstream_breaker_state") == 1
	})
	for _, w := range append(c.leaving, c.live...) {
		w.stop() // theirs is no leak of the proxy's
	}
	r.stop()
}

// series counts the series of a metric.
func (r *rig) series(name string) int {
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return len(f.Metric)
		}
	}
	return 0
}
