package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/router"
)

func TestRetry_AnotherWorkerBeforeTheFirstByte(t *testing.T) {
	var sick atomic.Value // what the first worker that is asked does
	sick.Store("")
	asked := make(chan string, 16)
	// No connection is used twice: a request on a reused one may be sent again.
	well := func(c *call) bool {
		c.json(200, "Connection: close\r\n", string(c.body))
		return false
	}
	script := func(name string) func(c *call) bool {
		return func(c *call) bool {
			asked <- name
			if len(asked) > 1 {
				return well(c)
			}
			switch how := sick.Load().(string); how {
			case "503", "502", "504", "500", "429", "400":
				c.json(int(how[0]-'0')*100+int(how[1]-'0')*10+int(how[2]-'0'), "Connection: close\r\nRetry-After: 7\r\n", `{"error":{"message":"x","type":"y"}}`)
			case "silent death":
				c.reset()
				return false
			case "death after the status line":
				c.write("HTTP/1.1 200 OK\r\nContent-Ty")
				return false
			case "death after the headers":
				c.sse()
				return false
			default:
				return well(c)
			}
			return false
		}
	}
	a, b, d := startWorker(t, script("a")), startWorker(t, script("b")), startWorker(t, script("d"))
	r := newRig(t, setup{}, a, b, d)
	f := func(how string, status, workers int) {
		t.Helper()
		sick.Store(how)
		resp, body := r.post("", plainBody)
		n := len(asked)
		var names []string
		for range n {
			names = append(names, receive(t, asked))
		}
		if resp.StatusCode != status || n != workers {
			t.Errorf("%s: status %d from %v, want %d from %d workers: %s", how, resp.StatusCode, names, status, workers, body)
		}
		if n == 2 && names[0] == names[1] {
			t.Errorf("%s: worker %s was asked twice", how, names[0])
		}
		if resp.Header.Get("X-Warmroute-Worker") == "" {
			t.Errorf("%s: no worker named", how)
		}
		r.settled()
	}
	f("well", 200, 1)
	f("503", 200, 2)
	f("502", 200, 2)
	f("504", 200, 2)
	f("silent death", 200, 2)
	f("death after the status line", 502, 1) // FC-02
	f("death after the headers", 502, 1)
	f("500", 500, 1)
	f("400", 400, 1)
	f("429", 429, 1)
	sick.Store("429")
	resp, _ := r.post("", plainBody)
	receive(t, asked)
	if resp.Header.Get("Retry-After") != "7" {
		t.Errorf("429 lost its Retry-After: %v", resp.Header)
	}
	if n := r.metric("warmroute_proxy_retries_total", "reason=status"); n != 3 {
		t.Errorf("%v retries by status", n)
	}
	if n := r.metric("warmroute_proxy_retries_total", "reason=no_response"); n != 1 {
		t.Errorf("%v retries after silence", n)
	}
	r.stop()
}

// TestFC02_OneWorkerAlone: it is asked once more on another worker only, and there is none.
func TestFC02_OneWorkerAlone(t *testing.T) {
	w := startWorker(t, func(c *call) bool { c.reset(); return false })
	r := newRig(t, setup{}, w)
	for _, body := range []string{plainBody, streamBody} {
		w.calls.Store(0)
		resp, got := r.post("", body)
		if e := parseError(t, got); resp.StatusCode != 502 || !strings.Contains(e.Message, "w1") || w.calls.Load() > 2 {
			t.Errorf("%d %q after %d calls", resp.StatusCode, e.Message, w.calls.Load())
		}
	}
	r.stop()
}

// TestFC02_NoThirdAttempt: whichever connections they used, a request that kills its workers
// is sent twice.
func TestFC02_NoThirdAttempt(t *testing.T) {
	script := func(c *call) bool {
		if strings.Contains(string(c.body), "deadly") {
			c.reset()
			return false
		}
		return echo(c) // and keeps the connection
	}
	workers := []*worker{startWorker(t, script), startWorker(t, script), startWorker(t, script)}
	r := newRig(t, setup{}, workers...)
	sum := func() (n int32) {
		for _, w := range workers {
			n += w.calls.Load()
		}
		return n
	}
	for range 3 {
		for _, w := range workers { // each gets an idle connection
			eventually(t, "a request to each worker", func() bool {
				before := w.calls.Load()
				r.post("", plainBody)
				return w.calls.Load() > before
			})
		}
		before := sum()
		resp, body := r.post("", strings.Replace(plainBody, "hello", "deadly", 1))
		parseError(t, body)
		if n := sum() - before; resp.StatusCode != 502 || n != 2 {
			t.Errorf("status %d after %d attempts", resp.StatusCode, n)
		}
	}
	r.stop()
}

func TestRetry_RefusedConnectAndAllBusy(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		c.json(503, "", `{"error":{"message":"queue full","type":"y"}}`)
		return true
	})
	other := startWorker(t, echo)
	r := newRig(t, setup{}, w, other)
	other.stop()
	// The dead worker is found out by the first request that meets it. From then on the
	// refusal of the live one is the answer, in its own words.
	eventually(t, "the dead worker is out", func() bool {
		r.post("", plainBody)
		return !r.fleet.Status()[1].Healthy
	})
	for range 5 {
		resp, body := r.post("", plainBody)
		if resp.StatusCode != 503 || !strings.Contains(body, "queue full") {
			t.Fatalf("%d %q", resp.StatusCode, body)
		}
	}
	w.stop()
	for _, want := range []int{502, 503} { // refused, then nobody is left
		resp, body := r.post("", plainBody)
		parseError(t, body)
		if resp.StatusCode != want || strings.Contains(body, "127.0.0.1") {
			t.Errorf("%d %q, want %d", resp.StatusCode, body, want)
		}
	}
	r.stop()
}

// TestFC19_DeathInMidStream also covers FC-21: no second attempt.
func TestFC19_DeathInMidStream(t *testing.T) {
	var how atomic.Value
	script := func(c *call) bool {
		if how.Load() == "non-streaming" {
			c.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"choices\":[")
			return false
		}
		c.sse()
		c.chunk(delta("Here is the"))
		switch how.Load() {
		case "rst":
			c.gone2()
			c.reset()
		case "stall":
			c.gone()
		}
		return false
	}
	a, b := startWorker(t, script), startWorker(t, script)
	r := newRig(t, setup{limits: upstream.Timeouts{Idle: 100 * time.Millisecond}}, a, b)
	for i, q := range []struct{ how, says string }{{"fin", "broke off"}, {"rst", "broke off"}, {"stall", "idle_timeout"}} {
		how.Store(q.how)
		resp, got, err := r.exchange(request(pathChat, "", streamBody))
		if resp == nil || resp.StatusCode != 200 || err == nil {
			t.Fatalf("%s: %v %v", q.how, resp, err)
		}
		rest, ok := strings.CutPrefix(got, delta("Here is the")+"data: ")
		if !ok || strings.Contains(got, "[DONE]") || !strings.Contains(parseError(t, rest).Message, q.says) {
			t.Errorf("%s: %q", q.how, got)
		}
		if n := a.calls.Load() + b.calls.Load(); int(n) != i+1 {
			t.Errorf("%s: %d requests to workers", q.how, n)
		}
		r.settled()
	}
	how.Store("non-streaming")
	resp, got := r.post("", plainBody)
	if e := parseError(t, got); resp.StatusCode != 502 || !strings.Contains(e.Message, "broke off") || strings.Contains(got, "choices") {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	if n := r.metric("warmroute_proxy_stream_breaks_total"); n != 4 {
		t.Errorf("%v breaks were counted", n)
	}
	if n := r.metric("warmroute_proxy_requests_total", "code=5xx"); n != 4 {
		t.Errorf("%v requests count as failed", n)
	}
	r.stop()
}

// gone2 lets the first event reach the proxy before a reset overtakes it.
func (c *call) gone2() {
	raw, _ := c.Conn.(*net.TCPConn).SyscallConn()
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		if unsent(raw) == 0 {
			return
		}
	}
}

func TestErrors_EveryFaultIsReadable(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		if strings.Contains(string(c.body), "hang") {
			c.gone()
			return false
		}
		return echo(c)
	})
	r := newRig(t, setup{limits: upstream.Timeouts{FirstByte: 100 * time.Millisecond}, proxy: Config{HeaderTimeout: 300 * time.Millisecond}}, w)
	chat := func(body string) string { return request(pathChat, "", body) }
	for _, q := range []struct {
		name, raw            string
		status               int
		typ, code, param, in string
	}{
		{"malformed", chat(`{"model":"m","messages":[}`), 400, typeInvalid, "invalid_request", "", "byte"},
		{"empty", chat(""), 400, typeInvalid, "invalid_request", "", ""},
		{"not an object", chat("[1]"), 400, typeInvalid, "invalid_request", "", "object"},
		{"trailing", chat(plainBody + "x"), 400, typeInvalid, "invalid_request", "", ""},
		{"wrong type", chat(`{"model":7,"messages":[]}`), 400, typeInvalid, "invalid_request", "model", "string"},
		{"wrong stream", chat(`{"model":"m","stream":"yes","messages":[{"role":"user","content":"x"}]}`), 400, typeInvalid, "invalid_request", "stream", ""},
		{"twice", chat(`{"model":"m","model":"n","messages":[{"role":"user","content":"x"}]}`), 400, typeInvalid, "invalid_request", "model", ""},
		{"no messages", chat(`{"model":"m"}`), 400, typeInvalid, "invalid_request", "messages", ""},
		{"unknown model", chat(`{"model":"gpt-5","messages":[{"role":"user","content":"x"}]}`), 404, typeInvalid, "model_not_found", "model", "served are m, tuned, alias"},
		{"completions", request(pathCompletions, "", `{"model":"gpt-5","prompt":"x"}`), 404, typeInvalid, "model_not_found", "model", "gpt-5"},
		{"no such path", request("/v1/images", "", "{}"), 404, typeInvalid, "not_found", "", "/v1/images"},
		{"method", "GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405, typeInvalid, "method_not_allowed", "", "POST"},
		{"models method", request(pathModels, "", "{}"), 405, typeInvalid, "method_not_allowed", "", "GET"},
		{"one model", "GET /v1/models/nope HTTP/1.1\r\nHost: x\r\n\r\n", 404, typeInvalid, "model_not_found", "model", "nope"},
		{"first byte", chat(`{"model":"m","messages":[{"role":"user","content":"hang"}]}`), 504, typeTimeout, "first_byte_timeout", "", "first_byte_timeout of 100ms"},
		{"hint", request(pathChat, "X-Speculative-Prefill: banana\r\n", plainBody), 400, typeInvalid, "invalid_header", headerSpeculative, "true, false, auto"},
		{"rank", request(pathChat, "X-Data-Parallel-Rank: z\r\n", plainBody), 400, typeInvalid, "invalid_header", headerRank, `"z" is no rank`},
		{"negative rank", request(pathChat, "X-Data-Parallel-Rank: -1\r\n", plainBody), 400, typeInvalid, "invalid_header", headerRank, "from 0 up"},
		{"empty rank", request(pathCompletions, "X-Data-Parallel-Rank:\r\n", `{"model":"m","prompt":"x"}`), 400, typeInvalid, "invalid_header", headerRank, "from 0 up"},
		{"absent rank", request(pathChat, "X-Data-Parallel-Rank: 7\r\n", plainBody), 400, typeInvalid, "invalid_header", headerRank, "the highest is 0"},
		{"bare LF", "GET /healthz HTTP/1.1\nHost: x\n\n", 400, typeInvalid, "invalid_request", "", "LF alone"},
		{"nonsense", "HELLO\r\n\r\n", 400, typeInvalid, "invalid_request", "", "malformed HTTP"},
		{"headers that never end", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", 408, typeTimeout, "request_timeout", "", "in time"},
	} {
		r.cfg.Aliases = map[string]string{"alias": "m"}
		resp, body, err := r.exchange(q.raw)
		if err != nil {
			t.Errorf("%s: %v", q.name, err)
			continue
		}
		e := parseError(t, body)
		code, param := "", ""
		if e.Code != nil {
			code = *e.Code
		}
		if e.Param != nil {
			param = *e.Param
		}
		if resp.StatusCode != q.status || e.Type != q.typ || code != q.code || param != q.param || !strings.Contains(e.Message, q.in) {
			t.Errorf("%s: %d %s %s param=%q %q", q.name, resp.StatusCode, e.Type, code, param, e.Message)
		}
		if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: headers %v", q.name, resp.Header)
		}
		if q.status == 405 && resp.Header.Get("Allow") == "" {
			t.Errorf("%s: no Allow", q.name)
		}
	}
	r.stop()
}

// TestErrors_SilentClientHearsNothing: a connection that was opened ahead of its first
// request is closed without an answer that nobody asked for.
func TestErrors_SilentClientHearsNothing(t *testing.T) {
	r := newRig(t, setup{proxy: Config{HeaderTimeout: 50 * time.Millisecond}}, startWorker(t, echo))
	c := r.dial()
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_ = c.Close()
	r.stop()
}

func TestErrors_Saturated(t *testing.T) {
	goOn := make(chan struct{})
	started := make(chan struct{}, 2)
	w := startWorker(t, func(c *call) bool {
		started <- struct{}{}
		await(goOn)
		return echo(c)
	})
	r := newRig(t, setup{router: router.Config{MaxInflight: 2, MaxQueue: 1}}, w)
	var busy []io.Closer
	for range 2 {
		c := r.dial()
		_, _ = io.WriteString(c, request(pathChat, "", plainBody))
		receive(t, started)
		busy = append(busy, c)
	}
	// A client that waits in the queue and leaves makes room there.
	left := r.dial()
	_, _ = io.WriteString(left, request(pathChat, "", plainBody))
	eventually(t, "it waits", func() bool { return r.cfg.Router.Queue().Waiting == 1 })
	_ = left.Close()
	eventually(t, "the queue is empty", func() bool { return r.cfg.Router.Queue().Waiting == 0 })
	waits := r.dial()
	_, _ = io.WriteString(waits, request(pathChat, "X-Warmroute-Explain: 1\r\n", strings.Replace(plainBody, "{", `{"priority":-1,`, 1)))
	eventually(t, "it waits", func() bool { return r.cfg.Router.Queue().Classes["urgent"] == 1 })
	resp, body := r.post("", plainBody)
	if e := parseError(t, body); resp.StatusCode != 429 || e.Type != typeRateLimit || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v %q", resp.StatusCode, resp.Header, body)
	}
	close(goOn)
	resp, _, err := readResponse(bufio.NewReader(waits))
	if err != nil || resp.StatusCode != 200 || !strings.Contains(resp.Header.Get("Server-Timing"), ", queue;dur=") {
		t.Fatalf("who waited got %v, %v", resp, err)
	}
	_ = waits.Close()
	for _, c := range busy {
		_, _ = readOne(c.(net.Conn))
		_ = c.Close()
	}
	r.settled()
	if resp, _ := r.post("", plainBody); resp.StatusCode != 200 {
		t.Errorf("after the others: %d", resp.StatusCode)
	}
	r.stop()
}

func readOne(c net.Conn) (string, error) {
	_, body, err := readResponse(bufio.NewReader(c))
	return body, err
}

// TestFC69_DrainingFinishesStreams: readiness says no first, the port closes, streams go
// on; what is open when the grace ends is broken off visibly.
func TestFC69_DrainingFinishesStreams(t *testing.T) {
	for _, within := range []bool{true, false} {
		goOn := make(chan struct{})
		w := startWorker(t, func(c *call) bool {
			c.sse()
			c.chunk(delta("a"))
			await(goOn)
			c.chunk(finish + doneEnd)
			c.end()
			return true
		})
		grace := 10 * time.Second
		if !within {
			grace = 150 * time.Millisecond
		}
		r := newRig(t, setup{proxy: Config{Grace: grace}}, w)
		var conns []net.Conn
		var readers []*bufio.Reader
		for range 10 {
			c := r.dial()
			_, _ = io.WriteString(c, request(pathChat, "", streamBody))
			br := bufio.NewReader(c)
			if _, err := br.Peek(1); err != nil {
				t.Fatal(err)
			}
			conns, readers = append(conns, c), append(readers, br)
		}
		idle := r.dial()
		ended := make(chan struct{})
		go func() { defer close(ended); r.stop() }()
		eventually(t, "readiness says no", func() bool {
			status, report := r.readiness()
			return status == 503 && report.Status == "draining"
		})
		eventually(t, "the port is closed", func() bool {
			c, err := net.Dial("tcp", r.Addr().String())
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		})
		if within {
			close(goOn)
		}
		for i, br := range readers {
			_, body, err := readResponse(br)
			if within && (err != nil || body != delta("a")+finish+doneEnd) {
				t.Errorf("stream %d: %v %q", i, err, body)
			}
			if !within && (err == nil || !strings.Contains(body, "shutting_down") || strings.Contains(body, "[DONE]")) {
				t.Errorf("stream %d: %v %q", i, err, body)
			}
			_ = conns[i].Close()
		}
		if !within {
			close(goOn)
		}
		_ = idle.Close()
		<-ended
	}
}

func TestNew_PortInUseSaysSo(t *testing.T) {
	w := startWorker(t, echo)
	r := newRig(t, setup{}, w)
	c := r.cfg
	c.Registerer = nil
	for _, taken := range []struct{ listen, admin, flag string }{
		{r.Addr().String(), "127.0.0.1:0", "--listen"}, {"127.0.0.1:0", r.AdminAddr().String(), "--admin"},
	} {
		c.Listen, c.Admin = taken.listen, taken.admin
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), taken.flag) || !strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: %v", taken.flag, err)
		}
	}
	r.stop()
}

func TestConfig_ValidateNamesTheSetting(t *testing.T) {
	r := newRig(t, setup{}, startWorker(t, echo))
	for want, change := range map[string]func(c *Config){
		"--max-body":    func(c *Config) { c.MaxBodyBytes = -1 },
		"--grace":       func(c *Config) { c.Grace = -1 },
		"--model-alias": func(c *Config) { c.Aliases = map[string]string{"a": ""} },
		"alias itself":  func(c *Config) { c.Aliases = map[string]string{"a": "b", "b": "c"} },
		"BUG":           func(c *Config) { c.Router = nil },
	} {
		c := r.cfg
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	r.stop()
}

// TestPanic_CostsOneRequest: a bug in the handler or in the stream.
func TestPanic_CostsOneRequest(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		c.stream(delta("a"), doneEnd)
		return true
	})
	r := newRig(t, setup{}, w)
	prompt := r.cfg.Prompt
	r.cfg.Prompt = nil
	resp, body := r.post("", streamBody)
	if e := parseError(t, body); resp.StatusCode != 500 || strings.Contains(e.Message, "nil") {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	r.cfg.Prompt = prompt
	if resp, _ := r.post("", streamBody); resp.StatusCode != 200 {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
	s := &stream{t: &turn{s: r.Server}, r: &relay{src: panicking{}}}
	if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errBroken) {
		t.Errorf("%d %v", n, err)
	}
	if n := r.metric("warmroute_proxy_panics_total"); n != 2 {
		t.Errorf("%v panics were counted", n)
	}
	r.stop()
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("boom") }

// TestRun_EndsWhenItIsStoppedAtOnce: the signal may come before the port is served.
func TestRun_EndsWhenItIsStoppedAtOnce(t *testing.T) {
	r := newRig(t, setup{}, startWorker(t, echo))
	cfg := r.cfg
	cfg.Registerer = nil
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }() // owned by the test
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run goes on")
	}
	r.stop()
}

func TestAdmin_ShowsWhatIsGoingOn(t *testing.T) {
	w := startWorker(t, echo)
	r := newRig(t, setup{proxy: Config{Aliases: map[string]string{"gpt-4o": "m", "ghost": "unserved"}}}, w)
	r.post("", plainBody)
	admin := func(method, path, body string) (int, string) {
		t.Helper()
		c, err := net.Dial("tcp", r.AdminAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
		resp, got, err := readResponse(bufio.NewReader(c))
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, got
	}
	for path, want := range map[string]string{
		"/healthz":       `"ok"`,
		"/readyz":        `"ready"`,
		"/metrics":       `warmroute_proxy_requests_total{code="2xx",endpoint="chat"} 1`,
		"/debug/workers": `"unjoined_feeds"`,
		"/debug/route":   `"candidates"`,
		"/debug/pprof/":  "goroutine",
		"/":              "/debug/route",
	} {
		if status, got := admin("GET", path, ""); status != 200 || !strings.Contains(got, want) {
			t.Errorf("%s: %d lacks %s:\n%.2000s", path, status, want, got)
		}
	}
	if _, got := admin("GET", "/debug/route?text", ""); !strings.Contains(got, "cost=") {
		t.Errorf("no table: %s", got)
	}
	before := w.calls.Load()
	if status, got := admin("POST", "/debug/route?text", strings.Replace(plainBody, `"m"`, `"gpt-4o"`, 1)); status != 200 || !strings.Contains(got, "w1") {
		t.Errorf("explain: %d %s", status, got)
	}
	if status, got := admin("POST", "/debug/route", "{"); status != 400 {
		t.Errorf("explain nonsense: %d %s", status, got)
	}
	if status, got := admin("POST", "/debug/route", `{"model":"x","messages":[{"role":"user","content":"x"}]}`); status != 404 || !strings.Contains(got, "served are") {
		t.Errorf("explain an unknown model: %d %s", status, got)
	}
	if w.calls.Load() != before {
		t.Error("explaining sent a request")
	}
	if n := r.metric("warmroute_router_decisions_total"); n != 1 || len(r.cfg.Router.Decisions()) != 1 {
		t.Errorf("explaining counts as a decision: %v", n)
	}
	r.settled()

	resp, body, err := r.exchange("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	var list struct {
		Data []struct {
			ID, Root, Parent string
			MaxModelLen      int `json:"max_model_len"`
		}
	}
	if err != nil || resp.StatusCode != 200 || json.Unmarshal([]byte(body), &list) != nil {
		t.Fatalf("%v %q", err, body)
	}
	if got := fmt.Sprint(list.Data); got != "[{m   4096} {tuned  m 0} {gpt-4o m  4096}]" {
		t.Errorf("models: %s", got)
	}
	if resp, body, _ := r.exchange("GET /v1/models/gpt-4o HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 200 || !strings.Contains(body, `"root":"m"`) {
		t.Errorf("one model: %s", body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if resp, body, err := r.exchange("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil || resp.StatusCode != 200 || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %v %v %q", path, err, resp, body)
		}
	}
	r.stop()
}

func TestReadiness_DegradedIsStillReady(t *testing.T) {
	a, b := startWorker(t, echo), startWorker(t, echo)
	r := newRig(t, setup{probe: 20 * time.Millisecond}, a, b)
	b.stop()
	eventually(t, "readiness says degraded", func() bool {
		status, report := r.readiness()
		return status == 200 && report.Status == "degraded" && len(report.Reasons) == 1 && strings.Contains(report.Reasons[0], "w2")
	})
	a.stop()
	eventually(t, "readiness says unready", func() bool { status, _ := r.readiness(); return status == 503 })
	r.stop()
}
