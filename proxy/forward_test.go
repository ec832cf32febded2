package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/upstream"
)

// echo answers with the request's own body.
func echo(c *call) bool {
	c.json(200, "", string(c.body))
	return true
}

func TestForward_BodiesPassUnchanged(t *testing.T) {
	w := startWorker(t, echo)
	r := newRig(t, setup{proxy: Config{Aliases: map[string]string{"gpt-4o": "m"}}}, w)
	f := func(body, want string) {
		t.Helper()
		if resp, got := r.post("", body); resp.StatusCode != 200 || got != want {
			t.Errorf("%d:\n got %s\nwant %s", resp.StatusCode, got, want)
		}
	}
	same := func(body string) { t.Helper(); f(body, body) }
	same(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	same(" {\"model\" : \"m\",\n\t\"seed\": 12345678901234567890123, \"x\":{\"b\":1,\"a\":[1e400,null]}, \"messages\": [ {\"content\":null,\"role\":\"assistant\",\"tool_calls\":[]}, {\"role\":\"user\",\"content\":\"\\u00e9\\/\"} ] } ")
	same(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"model":"m"}`)
	// An alias changes the model's name and nothing else; the response is the worker's.
	f(`{"messages":[{"role":"user","content":"gpt-4o"}], "model":  "gpt-4o","x":1.50}`, `{"messages":[{"role":"user","content":"gpt-4o"}], "model":  "m","x":1.50}`)
	r.stop()
}

// TestFC23_UsageIsAskedForAndCutOut: the client sees what it asked for, whatever the proxy
// needs for its own accounting.
func TestFC23_UsageIsAskedForAndCutOut(t *testing.T) {
	sent := make(chan string, 8)
	w := startWorker(t, func(c *call) bool {
		sent <- string(c.body)
		c.sse()
		c.chunk(delta("a"))
		c.chunk(delta("b") + finish)
		if strings.Contains(string(c.body), `"include_usage":true`) {
			c.chunk(usage[:25])
			c.chunk(usage[25:] + doneEnd)
		} else {
			c.chunk(doneEnd)
		}
		c.end()
		return true
	})
	r := newRig(t, setup{engine: upstream.EngineVLLM}, w)
	without := delta("a") + delta("b") + finish + doneEnd
	with := delta("a") + delta("b") + finish + usage + doneEnd
	const rest = `"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	for i, q := range []struct{ in, upstream, out string }{
		{`{` + rest, `{"stream_options":{"include_usage":true},` + rest, without},
		{`{"stream_options":{"include_usage":false},` + rest, `{"stream_options":{"include_usage":true},` + rest, without},
		{`{"stream_options":{"include_usage":true},` + rest, `{"stream_options":{"include_usage":true},` + rest, with},
		{`{"stream_options":{"include_usage": true,"continuous_usage_stats":true},` + rest, `{"stream_options":{"include_usage": true,"continuous_usage_stats":true},` + rest, ""},
	} {
		_, got := r.post("", q.in)
		if s := receive(t, sent); s != q.upstream {
			t.Errorf("the worker got %s\nwant %s", s, q.upstream)
		}
		if q.out != "" && got != q.out {
			t.Errorf("the client got %q\nwant %q", got, q.out)
		}
		want := min(float64(i+1), 3)
		eventually(t, "usage is accounted", func() bool {
			return r.metric("warmroute_proxy_cached_tokens_total") == 4*want && r.metric("warmroute_proxy_output_tokens_total") == 2*want
		})
	}
	r.stop()
}

func TestFC09_HeadersOfBothSides(t *testing.T) {
	got := make(chan http.Header, 1)
	w := startWorker(t, func(c *call) bool {
		c.Header.Set("Host", c.Host)
		got <- c.Header
		c.json(200, "X-Request-Id: theirs\r\nX-Warmroute-Worker: forged\r\nConnection: x-gone\r\nX-Gone: 1\r\nKeep-Alive: timeout=5\r\nX-Ratelimit: 9\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n", "{}")
		return true
	})
	r := newRig(t, setup{}, w)
	resp, _ := r.post("Connection: x-drop, keep-alive\r\nX-Drop: 1\r\nTE: trailers\r\nProxy-Authorization: secret\r\nUpgrade: h2c\r\n"+
		"X-Request-Id: abc\r\nX-Request-Id: def\r\nTraceparent: 00-1-2-03\r\nAuthorization: Bearer k\r\nUser-Agent: sdk/1\r\nX-Custom: a\r\nX-Custom: b\r\n"+
		"X-Data-Parallel-Rank: 0\r\nX-Warmroute-Explain: 1\r\nCookie: c=d\r\nAccept: */*\r\n", plainBody)
	h := receive(t, got)
	want := map[string][]string{
		"Host": {w.Addr().String()}, "Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(plainBody))},
		"X-Request-Id": {"abc"}, "Traceparent": {"00-1-2-03"}, "Authorization": {"Bearer k"}, "User-Agent": {"sdk/1"},
		"X-Custom": {"a", "b"}, "Cookie": {"c=d"}, "Accept": {"*/*"}, "Accept-Encoding": {"identity"},
	}
	for k, v := range h {
		if !slices.Equal(want[k], v) {
			t.Errorf("the worker got %s: %q, want %q", k, v, want[k])
		}
		delete(want, k)
	}
	if len(want) > 0 {
		t.Errorf("the worker did not get %v", want)
	}
	wantBack := map[string][]string{
		"X-Request-Id": {"abc"}, "X-Warmroute-Worker": {"w1"}, "X-Ratelimit": {"9"}, "Set-Cookie": {"a=1", "b=2"},
		"Content-Type": {"application/json"}, "Content-Length": {"2"},
	}
	for k, v := range resp.Header {
		if strings.HasPrefix(k, "X-Warmroute-") && k != "X-Warmroute-Worker" || k == "Server-Timing" || k == "Date" {
			continue
		}
		if !slices.Equal(wantBack[k], v) {
			t.Errorf("the client got %s: %q, want %q", k, v, wantBack[k])
		}
		delete(wantBack, k)
	}
	if len(wantBack) > 0 {
		t.Errorf("the client did not get %v", wantBack)
	}
	for _, k := range []string{"X-Warmroute-Decision", "X-Warmroute-Reason", "X-Warmroute-Prompt-Source", "X-Warmroute-Overlap-Tokens", "X-Warmroute-Predicted-TTFT", "Server-Timing"} {
		if resp.Header.Get(k) == "" {
			t.Errorf("the explanation lacks %s", k)
		}
	}
	// Not asked for: no explanation. An unfit id is replaced.
	resp, _ = r.post("X-Request-Id: a b\r\n", plainBody)
	if h := receive(t, got); h.Get("X-Request-Id") != resp.Header.Get("X-Request-Id") || len(h.Get("X-Request-Id")) != 32 {
		t.Errorf("request ids: %q and %q", h.Get("X-Request-Id"), resp.Header.Get("X-Request-Id"))
	}
	if resp.Header.Get("X-Warmroute-Decision") != "" {
		t.Error("an explanation nobody asked for")
	}
	r.stop()
}

func TestFC10_LargeHeaders(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		c.json(200, "X-Long: "+strings.Repeat("y", 6<<10)+"\r\n", fmt.Sprint(len(c.Header.Get("Authorization"))))
		return true
	})
	r := newRig(t, setup{}, w)
	for size, want := range map[int]int{6 << 10: 200, 15 << 10: 200, 70 << 10: 431} {
		resp, body, err := r.exchange(request(pathChat, "Authorization: Bearer "+strings.Repeat("x", size)+"\r\n", plainBody))
		if err != nil || resp.StatusCode != want {
			t.Errorf("%d bytes: %v %v", size, resp, err)
			continue
		}
		if want == 431 {
			parseError(t, body)
		} else if body != fmt.Sprint(size+7) || len(resp.Header.Get("X-Long")) != 6<<10 {
			t.Errorf("%d bytes: %q", size, body)
		}
	}
	r.stop()
}

func TestFC11_AmbiguousFramingIsRefused(t *testing.T) {
	w := startWorker(t, echo)
	r := newRig(t, setup{}, w)
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(plainBody), plainBody)
	for i, raw := range []string{
		head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
		head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		head + "Transfer-Encoding: chunked\r\ncontent-length: 0\r\n\r\n" + chunk,
		head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
		head + "Content-Length: 5, 5\r\n\r\nabcde",
		head + "Content-Length: +5\r\n\r\nabcde",
		head + "Content-Length: 0x5\r\n\r\nabcde",
		head + "Content-Length: -1\r\n\r\nabcde",
		head + "Transfer-Encoding: xchunked\r\n\r\n" + chunk,
		head + "Transfer-Encoding: chunked, identity\r\n\r\n" + chunk,
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
		head + "Transfer-Encoding : chunked\r\n\r\n" + chunk,
		strings.Replace(head, "1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n" + chunk,
		head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Replace(chunk, "\r\n", ";a\nb\r\n", 1),
		head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + chunk,
		head + "Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefg\r\n0\r\n\r\n",
		head + "X: a\r\n b\r\nContent-Length : 2\r\n\r\n{}",
		"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
		"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}",
		"POST  /v1/chat/completions  HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
	} {
		c := r.dial()
		_, _ = io.WriteString(c, raw+request(pathChat, "", plainBody))
		br := bufio.NewReader(c)
		resp, body, err := readResponse(br)
		if err != nil || resp.StatusCode != 400 {
			t.Errorf("payload %d: %v %q, %v", i, resp, body, err)
		} else {
			parseError(t, body)
		}
		if _, err := br.ReadByte(); err == nil {
			t.Errorf("payload %d: the connection goes on", i)
		}
		_ = c.Close()
	}
	if n := w.calls.Load(); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}
	r.stop()
}

func TestFC04_ChunkedRequestBodies(t *testing.T) {
	framing := make(chan string, 1)
	w := startWorker(t, func(c *call) bool {
		framing <- fmt.Sprint(c.ContentLength, c.TransferEncoding)
		return echo(c)
	})
	r := newRig(t, setup{proxy: Config{MaxBodyBytes: 64 << 10}}, w)
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 2000) + `"}]}`
	var b strings.Builder
	for i := range body {
		b.WriteString("1\r\n" + body[i:i+1] + "\r\n")
	}
	if resp, got, err := r.exchange(head + b.String() + "0\r\n\r\n"); err != nil || resp.StatusCode != 200 || got != body {
		t.Errorf("%v %v %d bytes", resp, err, len(got))
	}
	if got := <-framing; got != fmt.Sprintf("%d []", len(body)) {
		t.Errorf("upstream framing %s", got)
	}
	// Without end: cut at the limit, and the answer is readable.
	c := r.dial()
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, err := io.WriteString(c, head)
		for err == nil {
			_, err = io.WriteString(c, "400\r\n"+strings.Repeat("x", 0x400)+"\r\n")
		}
	}()
	resp, got, err := readResponse(bufio.NewReader(c))
	if err != nil || resp.StatusCode != 413 {
		t.Errorf("endless body: %v %v", resp, err)
	} else {
		parseError(t, got)
	}
	_ = c.Close()
	<-stop
	r.stop()
}

func TestFC03_BodyLimitIsExactAndReadable(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		c.json(200, "", fmt.Sprint(len(c.body)))
		return true
	})
	r := newRig(t, setup{proxy: Config{MaxBodyBytes: 8 << 20}}, w)
	image := func(size int) string {
		const open, end = `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:`, `"}}]}]}`
		return open + strings.Repeat("A", size-len(open)-len(end)) + end
	}
	for size, want := range map[int]int{39 << 20 / 10: 200, 41 << 20 / 10: 200, 8 << 20: 200, 8<<20 + 1: 413, 12 << 20: 413} {
		raw := request(pathChat, "", image(size))
		for range 2 {
			c := r.dial()
			sent := make(chan struct{})
			go func() { // a client that sends all before it reads
				defer close(sent)
				_, _ = io.WriteString(c, raw)
			}()
			<-sent
			resp, body, err := readResponse(bufio.NewReader(c))
			if err != nil || resp.StatusCode != want {
				t.Fatalf("%d bytes: %v %v", size, resp, err)
			}
			if want == 200 && body != fmt.Sprint(size) {
				t.Errorf("%d bytes: the worker got %s", size, body)
			} else if want == 413 && !strings.Contains(parseError(t, body).Message, "8388608") {
				t.Errorf("413 says %s", body)
			}
			_ = c.Close()
		}
	}
	r.stop()
}

func TestFC05_ExpectContinue(t *testing.T) {
	w := startWorker(t, echo)
	r := newRig(t, setup{proxy: Config{MaxBodyBytes: 4 << 20}}, w)
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 2<<20) + `"}]}`
	ask := func(path string, length int) (*bufio.Reader, io.WriteCloser) {
		c := r.dial()
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", path, length)
		return bufio.NewReader(c), c
	}
	br, c := ask(pathChat, len(body))
	if line, _ := br.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q", line)
	}
	_, _ = br.ReadString('\n')
	_, _ = io.WriteString(c, body)
	if resp, got, err := readResponse(br); err != nil || resp.StatusCode != 200 || got != body {
		t.Errorf("%v %v", resp, err)
	}
	_ = c.Close()
	for _, q := range []struct {
		path         string
		length, want int
	}{{"/v1/nonsense", len(body), 404}, {pathChat, 5 << 20, 413}, {pathModels, 10, 405}} {
		br, c := ask(q.path, q.length)
		resp, got, err := readResponse(br)
		if err != nil || resp.StatusCode != q.want {
			t.Errorf("%s: %v %v", q.path, resp, err)
		} else {
			parseError(t, got)
		}
		if _, err := br.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection goes on: %v", q.path, err)
		}
		_ = c.Close()
	}
	r.stop()
}

func TestFC06_CompressedRequestBodies(t *testing.T) {
	got := make(chan *call, 1)
	w := startWorker(t, func(c *call) bool {
		got <- c
		return echo(c)
	})
	others := map[string][]byte{ // before the rig: fasthttp's compressors keep goroutines
		"deflate": fasthttp.AppendDeflateBytes(nil, []byte(plainBody)),
		"zstd":    fasthttp.AppendZstdBytes(nil, []byte(plainBody)),
		"br":      fasthttp.AppendBrotliBytes(nil, []byte(plainBody)),
	}
	r := newRig(t, setup{proxy: Config{MaxBodyBytes: 1 << 20}}, w)
	zip := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, s)
		_ = z.Close()
		return b.String()
	}
	if resp, body := r.post("Content-Encoding: gzip\r\n", zip(plainBody)); resp.StatusCode != 200 || body != plainBody {
		t.Errorf("%v %q", resp.Status, body)
	}
	if c := receive(t, got); c.Header.Get("Content-Encoding") != "" || string(c.body) != plainBody {
		t.Errorf("the worker got encoding %q", c.Header.Get("Content-Encoding"))
	}
	for encoding, body := range others {
		resp, answer := r.post("Content-Encoding: "+encoding+"\r\n", string(body))
		if resp.StatusCode != 200 || string(receive(t, got).body) != plainBody {
			t.Errorf("%s: %v %q", encoding, resp.Status, answer)
		}
	}
	for _, q := range []struct {
		encoding, body string
		status         int
		says           string
	}{
		{"gzip", zip(plainBody)[:30], 400, "not valid gzip"},
		{"lzma", plainBody, 415, "lzma"},
		{"gzip", zip(strings.Repeat("0", 16<<20)), 413, "1048576"},
	} {
		resp, body := r.post("Content-Encoding: "+q.encoding+"\r\n", q.body)
		if e := parseError(t, body); resp.StatusCode != q.status || !strings.Contains(e.Message, q.says) {
			t.Errorf("%s: %d %q", q.encoding, resp.StatusCode, e.Message)
		}
	}
	r.stop()
}

// TestFC08_FramingIsOurOwn: what the worker sends is framed anew, whatever it framed.
func TestFC08_FramingIsOurOwn(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		switch c.Header.Get("X-Case") {
		case "json error for a stream":
			c.json(400, "", `{"error":{"message":"too long","type":"BadRequestError"}}`)
		case "both framings":
			c.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
		case "until close":
			c.write("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\":1}")
			return false
		case "chunked json":
			c.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n")
		case "no content":
			c.write("HTTP/1.1 204 No Content\r\n\r\n")
		case "stream with a length":
			c.write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(doneEnd), doneEnd))
		}
		return true
	})
	r := newRig(t, setup{}, w)
	f := func(name, body string, status int, want string, length int64) {
		t.Helper()
		resp, got := r.post("X-Case: "+name+"\r\n", body)
		if resp.StatusCode != status || got != want || resp.ContentLength != length {
			t.Errorf("%s: %d %q, length %d", name, resp.StatusCode, got, resp.ContentLength)
		}
	}
	f("json error for a stream", streamBody, 400, `{"error":{"message":"too long","type":"BadRequestError"}}`, 57)
	f("both framings", plainBody, 200, "{}", 2)
	f("until close", plainBody, 200, `{"a":1}`, 7)
	f("chunked json", plainBody, 200, `{"a":1}`, 7)
	f("no content", plainBody, 204, "", 0)
	f("stream with a length", streamBody, 200, doneEnd, -1)
	r.stop()
}

func TestForward_LongAnswersPassAsTheyCome(t *testing.T) {
	long := `{"x":"` + strings.Repeat("y", collectBytes) + `"}`
	w := startWorker(t, func(c *call) bool {
		if c.n == 1 {
			c.json(200, "", long)
			return true
		}
		c.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
		c.chunk(long[:collectBytes/2])
		c.chunk(long[collectBytes/2:])
		if c.n == 3 {
			c.reset()
			return false
		}
		c.end()
		return true
	})
	r := newRig(t, setup{}, w)
	for range 2 {
		if _, got := r.post("", plainBody); got != long {
			t.Errorf("%d bytes of %d", len(got), len(long))
		}
	}
	// The worker's RST may overtake its bytes: then nothing has gone out yet.
	if resp, got, err := r.exchange(request(pathChat, "", plainBody)); err == nil && resp.StatusCode != 502 || len(got) > len(long) {
		t.Errorf("a long answer that broke off looks whole: %d bytes", len(got))
	}
	r.stop()
}

// TestForward_HTTP10: such a client knows no chunks: the stream is collected for it.
func TestForward_HTTP10(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		c.stream(delta("a"), finish+doneEnd)
		return true
	})
	r := newRig(t, setup{}, w)
	c := r.dial()
	_, _ = io.WriteString(c, strings.Replace(request(pathChat, "", streamBody), "HTTP/1.1", "HTTP/1.0", 1))
	raw, err := io.ReadAll(c)
	_ = c.Close()
	head, body, _ := strings.Cut(string(raw), "\r\n\r\n")
	if err != nil || body != delta("a")+finish+doneEnd || !strings.Contains(head, fmt.Sprintf("Content-Length: %d", len(body))) || strings.Contains(head, "Transfer-Encoding") {
		t.Errorf("%v %q", err, raw)
	}
	r.stop()
}

// TestForward_AWorkersKeyStaysWithIt: each side's credential reaches only its own side.
func TestForward_AWorkersKeyStaysWithIt(t *testing.T) {
	got := make(chan string, 1)
	script := func(c *call) bool { got <- c.Header.Get("Authorization"); return echo(c) }
	a, b := startWorker(t, script), startWorker(t, script)
	r := newRig(t, setup{workers: []upstream.WorkerConfig{
		{ID: "a", URL: "http://" + a.Addr().String(), Engine: "openai", APIKey: "worker-secret"},
		{ID: "b", URL: "http://" + b.Addr().String(), Engine: "openai"},
	}})
	seen := map[string]bool{}
	for range 50 {
		resp, body := r.post("Authorization: Bearer client-secret\r\n", plainBody)
		id, auth := resp.Header.Get("X-Warmroute-Worker"), receive(t, got)
		seen[id] = true
		if want := map[string]string{"a": "Bearer worker-secret", "b": "Bearer client-secret"}[id]; auth != want {
			t.Fatalf("worker %s got %q", id, auth)
		}
		if strings.Contains(fmt.Sprint(resp.Header, body), "secret") {
			t.Fatalf("a credential came back: %v", resp.Header)
		}
	}
	if len(seen) != 2 {
		t.Errorf("only %v were used", seen)
	}
	r.stop()
	if strings.Contains(r.logs.String(), "secret") {
		t.Error("a credential is in the log")
	}
}

// TestForward_StreamsHoldNoPrompt: the prompt is given back when the answer begins.
func TestForward_StreamsHoldNoPrompt(t *testing.T) {
	if os.Getenv("GOGC") == "off" {
		t.Fatal("this test needs the collector")
	}
	goOn := make(chan struct{})
	started := make(chan struct{}, 64)
	w := startWorker(t, func(c *call) bool {
		c.body = nil
		c.sse()
		c.chunk(delta("a"))
		started <- struct{}{}
		await(goOn)
		c.stream(doneEnd)
		return false
	})
	r := newRig(t, setup{}, w)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools drop needs two
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	raw := request(pathChat, "", `{"model":"m","stream":true,"messages":[{"role":"user","content":"`+strings.Repeat("x", 1<<20)+`"}]}`)
	before := heap()
	var conns []io.Closer
	for range 40 {
		c := r.dial()
		_, _ = io.WriteString(c, raw)
		_, _ = c.Read(make([]byte, 1))
		receive(t, started)
		conns = append(conns, c)
	}
	deadline := time.Now().Add(5 * time.Second)
	grown := int64(heap() - before)
	for grown > 20<<20 && time.Now().Before(deadline) {
		grown = int64(heap() - before)
	}
	if grown > 20<<20 {
		t.Errorf("40 open streams of 1 MiB prompts hold %d MiB", grown>>20)
	}
	close(goOn)
	for _, c := range conns {
		_ = c.Close()
	}
	r.stop()
}

// TestForward_NamesTheRank: a worker with several data-parallel ranks is told which one was
// chosen; a client may pin it.
func TestForward_NamesTheRank(t *testing.T) {
	got := make(chan string, 1)
	w := startWorker(t, func(c *call) bool { got <- c.Header.Get("X-Data-Parallel-Rank"); return echo(c) })
	r := newRig(t, setup{workers: []upstream.WorkerConfig{{ID: "w", URL: "http://" + w.Addr().String(), Engine: "openai", Ranks: 3}}})
	seen := map[string]bool{}
	for range 60 {
		r.post("", plainBody)
		seen[receive(t, got)] = true
	}
	if !seen["0"] || !seen["1"] || !seen["2"] || len(seen) != 3 {
		t.Errorf("ranks %v", seen)
	}
	for range 5 {
		r.post("X-Data-Parallel-Rank: 2\r\n", plainBody)
		if rank := receive(t, got); rank != "2" {
			t.Errorf("pinned to 2, sent to %s", rank)
		}
	}
	r.stop()
}
