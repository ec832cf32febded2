package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router"
)

// pipeWorker is an engine on the other end of pipes, for virtual time. Its health is always
// good; how says what becomes of generations.
type pipeWorker struct {
	vllm   bool
	how    atomic.Value // func(n int) string: "ok", "500", "503+7", "hang", "break"
	asked  atomic.Int32 // generations
	probes atomic.Int32 // of them those of the fleet itself
	down   atomic.Bool  // refuses connections
	wg     sync.WaitGroup
}

func (p *pipeWorker) set(how string) { p.how.Store(func(int) string { return how }) }

func (p *pipeWorker) serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		r, body, err := readRequest(br)
		if err != nil || p.down.Load() {
			return
		}
		switch {
		case r.Method == http.MethodPost:
			if !p.generation(c, br, body) {
				return
			}
		case r.URL.Path == "/v1/models":
			reply(c, `{"data":[{"id":"m","owned_by":"x"}]}`)
		case p.vllm && r.URL.Path == "/version":
			reply(c, `{"version":"0.11.0"}`)
		case p.vllm && r.URL.Path == "/metrics":
			reply(c, fmt.Sprintf(vllmMetrics, "True"))
		case p.vllm && r.URL.Path == "/health":
			reply(c, "")
		default:
			fmt.Fprint(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		}
	}
}

// generation answers one and tells whether the connection stays.
func (p *pipeWorker) generation(c net.Conn, br *bufio.Reader, body string) bool {
	n := int(p.asked.Add(1))
	if strings.Contains(body, `"prompt":"0","max_tokens":1,`) {
		p.probes.Add(1)
	}
	switch how := p.how.Load().(func(int) string)(n); how {
	case "hang":
		_, _ = io.Copy(io.Discard, br) // until the other side gives up
		return false
	case "break":
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: half")
		return false
	case "ok":
		time.Sleep(50 * time.Millisecond)
		reply(c, "{}")
	default:
		code, after, _ := strings.Cut(how, "+")
		if after != "" {
			after = "Retry-After: " + after + "\r\n"
		}
		fmt.Fprintf(c, "HTTP/1.1 %s X\r\n%sContent-Length: 0\r\n\r\n", code, after)
	}
	return true
}

// pipeEnd writes nothing where there is nothing to write, as a socket does; a pipe waits
// for a reader even then.
type pipeEnd struct{ net.Conn }

func (p pipeEnd) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return p.Conn.Write(b)
}

// bubble is a fleet over pipes, within a synctest bubble.
type bubble struct {
	*Fleet
	t       *testing.T
	router  *router.Router
	workers []*pipeWorker
	reg     *prometheus.Registry
	stop    func()
}

func newBubble(t *testing.T, vllm bool, n int) *bubble {
	b := &bubble{t: t, router: newRouter(), reg: prometheus.NewRegistry()}
	var err error
	if b.Fleet, err = NewFleet(FleetConfig{Router: b.router, Registerer: b.reg, Timeouts: Timeouts{FirstByte: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	byAddr := map[string]*pipeWorker{}
	var cfg []WorkerConfig
	for i := range n {
		w := &pipeWorker{vllm: vllm}
		w.set("ok")
		b.workers = append(b.workers, w)
		byAddr[fmt.Sprintf("w%d:80", i+1)] = w
		cfg = append(cfg, WorkerConfig{ID: fmt.Sprintf("w%d", i+1), URL: fmt.Sprintf("http://w%d:80", i+1)})
	}
	b.dialer = func(_ context.Context, _, addr string) (net.Conn, error) {
		w := byAddr[addr]
		if w.down.Load() {
			return nil, errors.New("connection refused")
		}
		ours, theirs := net.Pipe()
		w.wg.Go(func() { w.serve(theirs) })
		return pipeEnd{ours}, nil
	}
	if err := b.SetWorkers(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	b.stop = func() {
		cancel()
		<-done
		for _, w := range b.workers {
			w.wg.Wait()
		}
	}
	time.Sleep(100 * time.Millisecond)
	for _, s := range b.Status() {
		if !s.Healthy {
			t.Fatalf("%s: %s", s.ID, s.Reason)
		}
	}
	return b
}

// send makes one request as the front does: no retry.
func (b *bubble) send(ctx context.Context) (worker string, status int, err error) {
	l, err := b.router.Route(ctx, &router.Request{Model: "m", PinRank: -1, Stream: true})
	if err != nil {
		return "", 0, err
	}
	defer l.Done(router.Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1})
	worker = l.Worker().ID
	req := post(`{"model":"m","stream":true}`)
	req.Generation, req.Stream = true, true
	req.Predicted = time.Duration(l.Decision().PredictedTTFT * float64(time.Second))
	r, err := b.Worker(worker).Do(ctx, req)
	if err != nil {
		return worker, 0, err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return worker, r.Header.StatusCode(), err
}

// tally sums what became of requests.
type sums struct {
	sync.Mutex
	good, bad, hung int
	by              map[string]int
}

// play sends rate requests a second for d and waits for their answers, which count as
// hung after ten seconds.
func (b *bubble) play(rate int, d time.Duration) *sums {
	s := &sums{by: map[string]int{}}
	var wg sync.WaitGroup
	for range int(d.Seconds() * float64(rate)) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			w, status, err := b.send(ctx)
			s.Lock()
			defer s.Unlock()
			s.by[w]++
			switch {
			case ctx.Err() != nil:
				s.hung++
			case err != nil || status != 200:
				s.bad++
			default:
				s.good++
			}
		})
		time.Sleep(time.Second / time.Duration(rate))
	}
	wg.Wait()
	return s
}

func (b *bubble) ejections(reason string) (n float64) {
	families, _ := b.reg.Gather()
	for _, f := range families {
		if f.GetName() != "warmroute_upstream_ejections_total" {
			continue
		}
		for _, m := range f.Metric {
			if m.Label[0].GetValue() == reason {
				n += m.Counter.GetValue()
			}
		}
	}
	return n
}

// TestFC68_EngineDeadHealthGood: the worker's health stays good while its generations
// fail or are never answered. It is out within seconds, its sibling serves, and it is back
// soon after it has recovered.
func TestFC68_EngineDeadHealthGood(t *testing.T) {
	f := func(vllm bool, how, reason string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t, vllm, 2)
			defer b.stop()
			name := fmt.Sprintf("vllm=%v %s", vllm, how)
			if s := b.play(20, 5*time.Second); s.bad+s.hung > 0 || s.by["w1"] == 0 || s.by["w2"] == 0 {
				t.Fatalf("%s: before: %+v", name, s.by)
			}
			b.workers[0].set(how)
			s := b.play(20, 10*time.Second)
			t.Logf("%s: first 10 s: %d good, %d bad, %d hung; to w1 %d", name, s.good, s.bad, s.hung, s.by["w1"])
			if ready, why := b.Ready(); !ready || len(why) != 1 || !strings.Contains(why[0], "w1") {
				t.Errorf("%s: readiness %v %q", name, ready, why)
			}
			if st := b.Status()[0]; st.Breaker == "closed" || st.BreakerReason == "" || !st.Healthy {
				t.Errorf("%s: status %+v", name, st)
			}
			s = b.play(20, time.Minute)
			t.Logf("%s: next minute: %d good, %d bad, %d hung; to w1 %d, probes %d", name, s.good, s.bad, s.hung, s.by["w1"], b.workers[0].probes.Load())
			if n := s.good + s.bad + s.hung; n != 1200 || (s.bad+s.hung)*20 >= n {
				t.Errorf("%s: %d of %d failed", name, s.bad+s.hung, n)
			}
			if vllm && s.bad+s.hung > 0 {
				t.Errorf("%s: clients tried the worker out", name)
			}
			if !vllm && b.workers[0].probes.Load() > 0 {
				t.Errorf("%s: a generic endpoint was made to generate", name)
			}
			if n := b.ejections(reason); n == 0 || vllm && n > 1 {
				t.Errorf("%s: %v ejections by %s", name, n, reason)
			}
			b.workers[0].set("ok")
			s = b.play(20, maxBackoff*3/2)
			if st := b.Status()[0]; st.Breaker != "closed" || s.bad+s.hung > 0 {
				t.Errorf("%s: not back: %s %s, %d bad", name, st.Breaker, st.BreakerReason, s.bad+s.hung)
			}
			if s = b.play(20, 5*time.Second); s.by["w1"] < 20 || s.bad+s.hung > 0 {
				t.Errorf("%s: after recovery: %v", name, s.by)
			}
			if ready, why := b.Ready(); !ready || len(why) > 0 {
				t.Errorf("%s: still degraded: %q", name, why)
			}
		})
	}
	f(true, "500", ejectInRow)
	f(true, "break", ejectInRow)
	f(true, "hang", ejectStuck)
	f(false, "500", ejectInRow)
	f(false, "break", ejectInRow)
}

// TestFC68_EverybodyIsSick: nobody is refused because all breakers are open, and the least
// sick worker gets the requests.
func TestFC68_EverybodyIsSick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, true, 2)
		defer b.stop()
		b.workers[0].set("500")
		b.play(20, 10*time.Second)
		b.workers[1].how.Store(func(n int) string {
			if n%2 == 0 {
				return "503"
			}
			return "ok"
		})
		s := b.play(20, time.Minute)
		t.Logf("one dead, one half dead: %d good, %d bad; %v", s.good, s.bad, s.by)
		if s.good < 500 || s.hung > 0 || s.by["w1"] > 60 {
			t.Errorf("%d good, %d hung, %v", s.good, s.hung, s.by)
		}
		b.workers[1].set("500")
		if s = b.play(20, 10*time.Second); s.by[""] > 0 || s.bad != 200 {
			t.Errorf("%d of 200 were answered by a worker", s.bad)
		}
		b.workers[0].set("ok")
		b.workers[1].set("ok")
		b.play(20, maxBackoff*3/2)
		if s = b.play(20, 5*time.Second); s.bad > 0 {
			t.Errorf("after recovery: %d bad", s.bad)
		}
	})
}

// TestBreaker_RefusalsAreNeutral: what a worker refuses for good reason does not eject it,
// and Retry-After sends new requests elsewhere for that long.
func TestBreaker_RefusalsAreNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, true, 2)
		defer b.stop()
		for _, how := range []string{"400", "404", "413", "429", "501", "302"} {
			b.workers[0].set(how)
			b.play(20, 3*time.Second)
			if st := b.Status()[0]; st.Breaker != "closed" || st.BreakerReason != "" {
				t.Errorf("%s: %s %s", how, st.Breaker, st.BreakerReason)
			}
		}
		for _, how := range []string{"429+7", "503+7"} {
			b.workers[0].set(how)
			asked := b.workers[0].asked.Load()
			s := b.play(20, 6*time.Second)
			n := b.workers[0].asked.Load() - asked
			if st := b.Status()[0]; n == 0 || n > 2 || s.hung > 0 || st.Breaker != "closed" || !strings.Contains(st.BreakerReason, "Retry-After") {
				t.Errorf("%s: asked %d times, %s %q", how, n, st.Breaker, st.BreakerReason)
			}
			b.workers[0].set("ok")
			time.Sleep(3 * time.Second)
			if s := b.play(20, 3*time.Second); s.by["w1"] < 10 || s.bad > 0 {
				t.Errorf("%s: after the pause %v", how, s.by)
			}
		}
		// Both ask for a pause: requests go on, the refusals are the answers.
		b.workers[0].set("429+30")
		b.workers[1].set("429+30")
		if s := b.play(20, 5*time.Second); s.bad != 100 || s.by[""] > 0 {
			t.Errorf("both pause: %d refusals, %v", s.bad, s.by)
		}
	})
}

// TestBreaker_ClientsThatLeaveAreNeutral: neither before the first byte nor after it.
func TestBreaker_ClientsThatLeaveAreNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, true, 1)
		defer b.stop()
		for range 40 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			_, _, err := b.send(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if st := b.Status()[0]; st.Breaker != "closed" {
			t.Errorf("%s: %s", st.Breaker, st.BreakerReason)
		}
		if l := b.Worker("w1").breaker.mu.flights; l != (flights{}) {
			t.Error("flights remain")
		}
	})
}

// TestBreaker_ANewProcessStartsClosed: a worker that was not there is another process when
// it answers again.
func TestBreaker_ANewProcessStartsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, true, 2)
		defer b.stop()
		b.workers[0].set("500")
		b.play(20, 20*time.Second)
		b.workers[0].down.Store(true)
		time.Sleep(20 * time.Second)
		if st := b.Status()[0]; st.Healthy || st.Breaker != "closed" {
			t.Errorf("healthy %v, breaker %s", st.Healthy, st.Breaker)
		}
		b.workers[0].set("ok")
		b.workers[0].down.Store(false)
		time.Sleep(6 * time.Second)
		if s := b.play(20, 3*time.Second); s.by["w1"] < 10 || s.bad > 0 {
			t.Errorf("the new process: %v, %d bad", s.by, s.bad)
		}
	})
}
