package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// eventually waits for ok, which must come true within five seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

// receive returns what a scripted worker tells a test, which must come within ten seconds.
func receive[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came from the worker within 10 s")
		panic("unreachable")
	}
}

// await is how a scripted worker waits for its test, which may have failed meanwhile.
func await(goOn <-chan struct{}) {
	select {
	case <-goOn:
	case <-time.After(10 * time.Second):
	}
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// call is one generation request as a scripted worker got it.
type call struct {
	net.Conn
	*http.Request
	body []byte
	n    int // of this worker, from 1
	br   *bufio.Reader
}

// write sends exact bytes.
func (c *call) write(s string) { _, _ = io.WriteString(c.Conn, s) }

// json answers with a whole body.
func (c *call) json(status int, header, body string) {
	c.write(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", status, header, len(body), body))
}

// sse starts a stream.
func (c *call) sse() {
	c.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
}

func (c *call) chunk(s string) { c.write(fmt.Sprintf("%x\r\n%s\r\n", len(s), s)) }
func (c *call) end()           { c.write("0\r\n\r\n") }

// stream answers with a whole stream, one chunk a part.
func (c *call) stream(parts ...string) {
	c.sse()
	for _, p := range parts {
		c.chunk(p)
	}
	c.end()
}

// gone waits until the proxy closes the connection.
func (c *call) gone() { _, _ = io.Copy(io.Discard, c.br) }

// reset closes the connection with RST.
func (c *call) reset() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Conn.Close()
}

// worker is a scripted engine: probes are answered, each generation runs the script. A
// script that returns false closes the connection.
type worker struct {
	net.Listener
	calls atomic.Int32
	conns atomic.Int32 // open
	wg    sync.WaitGroup
	mu    sync.Mutex
	open  map[net.Conn]bool
}

func startWorker(t testing.TB, f func(c *call) bool) *worker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveWorker(t, l, f)
}

// serveWorker is startWorker on a listener of the test's.
func serveWorker(t testing.TB, l net.Listener, f func(c *call) bool) *worker {
	t.Helper()
	w := &worker{Listener: l, open: map[net.Conn]bool{}}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.open[c] = true
			w.mu.Unlock()
			w.conns.Add(1)
			w.wg.Go(func() {
				defer w.conns.Add(-1)
				defer c.Close()
				w.serve(c, f)
			})
		}
	})
	t.Cleanup(w.stop)
	return w
}

// stop kills the worker like a power cut.
func (w *worker) stop() {
	_ = w.Close()
	w.mu.Lock()
	for c := range w.open {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *worker) serve(c net.Conn, f func(c *call) bool) {
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		answer := &call{Conn: c, Request: r, body: body, br: br}
		if r.Method == "POST" && (r.URL.Path == pathChat || r.URL.Path == pathCompletions) {
			if answer.n = int(w.calls.Add(1)); !f(answer) {
				return
			}
			continue
		}
		// Probes leave no idle connection behind: a request on one may be sent again.
		const once = "Connection: close\r\n"
		switch r.URL.Path {
		case "/v1/models":
			answer.json(200, once, `{"data":[{"id":"m","max_model_len":4096},{"id":"tuned","parent":"m"}]}`)
		case "/version":
			answer.json(200, once, `{"version":"0.33.0"}`)
		case "/metrics":
			answer.json(200, once, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",engine=\"0\"} 1\n")
		case "/health":
			answer.json(200, once, "{}")
		default:
			answer.json(404, once, "{}")
		}
		return
	}
}

// fasthttpRests are the goroutines that fasthttp leaves for a while: its clock, and the
// cleaner of idle workers, which ends within 10 s.
const fasthttpRests = 2

// rig is a proxy before scripted workers.
type rig struct {
	*Server
	t     testing.TB
	logs  *logBuffer
	reg   *prometheus.Registry
	fleet *upstream.Fleet
	stop  func() // ends the proxy and waits for it
}

// setup changes the parts of a rig before they are built.
type setup struct {
	engine   string // of all workers; "openai" asks for no usage
	limits   upstream.Timeouts
	router   router.Config
	proxy    Config
	probe    time.Duration
	portable bool
	window   time.Duration           // over which the pace of uploads is taken
	workers  []upstream.WorkerConfig // instead of the scripted ones
}

func newRig(t testing.TB, o setup, workers ...*worker) *rig {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	r := &rig{t: t, logs: new(logBuffer), reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if o.engine == "" {
		o.engine = upstream.EngineOpenAI
	}
	for i, w := range workers {
		o.workers = append(o.workers, upstream.WorkerConfig{ID: fmt.Sprintf("w%d", i+1), URL: "http://" + w.Addr().String(), Engine: o.engine})
	}
	if o.probe == 0 {
		o.probe = time.Minute // a test that wants health checks says so
	}
	o.router.Index, o.router.Workers, o.router.Logger, o.router.Registerer = index.NewSet(index.Config{}), new(kv.Workers), log, r.reg
	rt := router.New(o.router)
	var err error
	if r.fleet, err = upstream.NewFleet(upstream.FleetConfig{
		Workers: o.workers, Router: rt, Timeouts: o.limits, Probe: o.probe, Logger: log, Registerer: r.reg,
	}); err != nil {
		t.Fatal(err)
	}
	c := o.proxy
	c.Listen, c.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Router, c.Fleet, c.Prompt = rt, r.fleet, prompt.New(prompt.Config{Registerer: r.reg})
	c.Logger, c.Registerer, c.Gatherer, c.Version = log, r.reg, r.reg, "test"
	if r.Server, err = New(c); err != nil {
		t.Fatal(err)
	}
	if l, ok := r.listen.(*listener); ok {
		l.portable = o.portable
		if o.window > 0 {
			l.pace.window = o.window
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	fctx, fcancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() { _ = r.fleet.Run(fctx) })
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			eventually(t, "the front's connections end", func() bool { return r.front.GetOpenConnectionsCount() <= 0 })
			fcancel()
			wg.Wait()
			c.Prompt.Close()
			r.settled()
			for _, w := range workers {
				eventually(t, "a worker's connections end", func() bool { return w.conns.Load() == 0 })
			}
			eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+fasthttpRests })
			eventually(t, "files are closed", func() bool { return openFiles(t) <= files })
		})
	}
	t.Cleanup(r.stop)
	eventually(t, "the workers are found", func() bool {
		for _, s := range r.fleet.Status() {
			if !s.Healthy {
				return false
			}
		}
		return true
	})
	return r
}

// settled asserts that nothing is in flight: gauges, bookings and turns are back at 0.
func (r *rig) settled() {
	r.t.Helper()
	eventually(r.t, "no turn is open", func() bool { return r.active() == 0 })
	eventually(r.t, "the gauge is 0", func() bool { return r.metric("warmroute_proxy_inflight_requests") == 0 })
	for _, s := range r.cfg.Router.Status() {
		if s.Inflight != 0 || s.KVTokens != 0 || s.BacklogTokens != 0 {
			r.t.Errorf("worker %s still has %d in flight, %d KV tokens, %d backlog tokens", s.Worker, s.Inflight, s.KVTokens, s.BacklogTokens)
		}
	}
}

func openFiles(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // no such file system: descriptors are not counted there
	}
	return len(d)
}

// metric sums a metric over the series whose labels contain all of want ("name=value").
func (r *rig) metric(name string, want ...string) (sum float64) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.Metric {
			have := ""
			for _, l := range m.Label {
				have += l.GetName() + "=" + l.GetValue() + ";"
			}
			for _, w := range want {
				if !strings.Contains(have, w+";") {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// dial opens a connection to the front.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	if r.cfg.TLS != nil {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

const (
	plainBody  = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

// request returns the bytes of a request with a body.
func request(path, header, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", path, header, len(body), body)
}

// exchange sends raw bytes on a fresh connection and returns what came back until the end
// of the answer's body.
func (r *rig) exchange(raw string) (*http.Response, string, error) {
	r.t.Helper()
	c := r.dial()
	defer c.Close()
	_, _ = io.WriteString(c, raw)
	return readResponse(bufio.NewReader(c))
}

func readResponse(br *bufio.Reader) (*http.Response, string, error) {
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// post sends a chat request and demands a whole answer.
func (r *rig) post(header, body string) (*http.Response, string) {
	r.t.Helper()
	resp, got, err := r.exchange(request(pathChat, header, body))
	if err != nil {
		r.t.Fatalf("%v after %q", err, got)
	}
	return resp, got
}

// apiError is the OpenAI error object.
type apiError struct {
	Message, Type string
	Param, Code   *string
}

func parseError(t *testing.T, body string) apiError {
	t.Helper()
	var e struct{ Error *apiError }
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("not an OpenAI error: %q", body)
	}
	return *e.Error
}

// delta is one event of a stream.
func delta(text string) string {
	return fmt.Sprintf("data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", text)
}

const (
	finish  = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	usage   = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
	doneEnd = "data: [DONE]\n\n"
)
