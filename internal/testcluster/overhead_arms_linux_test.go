package testcluster_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// TestOverheadHelper is no test: with arguments it is one of the processes that
// TestBenchOverhead compares, until it is killed.
//
//	engine address address     an engine that answers at once, or paced, on two addresses
//	fasthttp address target    a bare pass-through of fasthttp
//	reverse address target     httputil.ReverseProxy that does nothing else
func TestOverheadHelper(t *testing.T) {
	args := flag.Args()
	if len(args) != 3 {
		return // the test binary's own run
	}
	switch args[0] {
	case "engine":
		var wg sync.WaitGroup
		for _, address := range args[1:] {
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { serveRaw(l, quickEngine{}.answer) })
		}
		wg.Wait()
	case "fasthttp":
		t.Fatal(passThrough(args[1], args[2]))
	case "reverse":
		t.Fatal(bareReverseProxy(args[1], args[2]))
	}
}

// manyConns bounds connections where a default would be too few for 5,000 streams.
const manyConns = 16384

// idleConns is how long the arms in Go keep a connection to the engine, as warmroute does.
const idleConns = 3500 * time.Millisecond

// passThrough is as little as a proxy of fasthttp can do: every request to one target, the
// answer's body streamed with a flush for each read.
func passThrough(listen, target string) error {
	to := &fasthttp.HostClient{
		Addr: target, MaxConns: manyConns, StreamResponseBody: true, MaxIdleConnDuration: idleConns,
		NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
	}
	front := fasthttp.Server{
		NoDefaultServerHeader: true, NoDefaultContentType: true, Concurrency: manyConns,
		Handler: func(rc *fasthttp.RequestCtx) {
			resp := fasthttp.AcquireResponse()
			if err := to.Do(&rc.Request, resp); err != nil {
				fasthttp.ReleaseResponse(resp)
				rc.Error(err.Error(), http.StatusBadGateway)
				return
			}
			rc.Response.SetStatusCode(resp.StatusCode())
			for k, v := range resp.Header.All() {
				switch string(k) {
				case "Content-Length", "Transfer-Encoding", "Connection":
				default:
					rc.Response.Header.SetBytesKV(k, v)
				}
			}
			rc.Response.SetBodyStream(passed{resp}, resp.Header.ContentLength())
		},
	}
	return front.ListenAndServe(listen)
}

// passed is the engine's body, which gives its connection back when it is closed.
type passed struct{ resp *fasthttp.Response }

func (p passed) Read(b []byte) (int, error) { return p.resp.BodyStream().Read(b) }

func (p passed) Close() error {
	err := p.resp.CloseBodyStream()
	fasthttp.ReleaseResponse(p.resp)
	return err
}

func bareReverseProxy(listen, target string) error {
	to := &url.URL{Scheme: "http", Host: target}
	rp := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     &http.Transport{MaxIdleConns: manyConns, MaxIdleConnsPerHost: manyConns, IdleConnTimeout: idleConns, DisableCompression: true},
		FlushInterval: -1,
		BufferPool:    &bufferPool{},
	}
	return http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Else the server may close a body whose end the transport has not seen when an engine
		// answers as fast as this one, and the answer breaks off.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			panic("BUG: " + err.Error())
		}
		rp.ServeHTTP(w, r)
	}))
}

const nginxConf = `daemon off;
user root;
worker_processes %d;
worker_rlimit_nofile 20000;
pid %[2]s/nginx.pid;
error_log stderr error;
events { worker_connections 16384; }
http {
	access_log off;
	client_body_temp_path %[2]s/body;
	proxy_temp_path %[2]s/proxy;
	fastcgi_temp_path %[2]s/fastcgi;
	uwsgi_temp_path %[2]s/uwsgi;
	scgi_temp_path %[2]s/scgi;
	client_max_body_size 64m;
	client_body_buffer_size 128k;
	keepalive_requests 1000000000;
	upstream engine { server %[3]s; keepalive 512; keepalive_requests 1000000000; }
	server {
		listen %[4]s backlog=4096;
		location / {
			proxy_pass http://engine;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
		}
	}
}
`

// startNginx runs nginx with a worker process for each CPU until the test ends, and returns
// the process ids. Its master must not be killed: its workers would stay.
func startNginx(t testing.TB, listen, target string) (pids func() []int) {
	t.Helper()
	bin := os.Getenv("WARMROUTE_NGINX")
	if bin == "" {
		t.Fatal("WARMROUTE_NGINX names no nginx: make overhead finds or fetches it")
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, cpus, dir, target, listen), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(bin, "-e", "stderr", "-p", dir, "-c", conf)
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("nginx said: %s", said.Bytes())
		}
	})
	waitFor(t, "nginx", func() error { return getOK("http://" + listen + "/health") })
	return func() []int { return append(children(cmd.Process.Pid), cmd.Process.Pid) }
}

// children returns the processes that a single-threaded process has started.
func children(pid int) (pids []int) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid)) // none once it has ended
	for _, f := range bytes.Fields(raw) {
		if n, err := strconv.Atoi(string(f)); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// monotonic is a clock that all processes of a machine share, in ns.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("BUG: " + err.Error())
	}
	return ts.Nano()
}

// quickEngine looks like a vLLM that has room for everything and computes nothing. The
// request's header says what it answers with: after X-Bench-First microseconds
// X-Bench-Events events, X-Bench-Pace microseconds apart with the time of the write as
// content, or a whole answer where there are no events.
type quickEngine struct{}

const quickMetrics = `vllm:cache_config_info{block_size="16",num_gpu_blocks="4000000",max_num_seqs="16384",enable_prefix_caching="True"} 1.0
`

// wholeReply stands for a reply of some 250 tokens.
var wholeReply = []byte(`{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"` +
	string(bytes.Repeat([]byte("tok "), 250)) + `"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":250,"total_tokens":750,"prompt_tokens_details":{"cached_tokens":0}}}`)

func (e quickEngine) answer(q *rawRequest, w *bufio.Writer) error {
	switch q.path() {
	case "/metrics":
		return sendRaw(w, 200, "text/plain", []byte(quickMetrics))
	case chatPath:
		if first := q.number("X-Bench-First"); first > 0 {
			sleep(context.Background(), time.Duration(first)*time.Microsecond)
		}
		if n := q.number("X-Bench-Events"); n > 0 {
			return e.stream(q, w, n, time.Duration(q.number("X-Bench-Pace"))*time.Microsecond)
		}
		return sendRaw(w, 200, "application/json", wholeReply)
	}
	return scripted{}.answer(q, w)
}

const (
	quickStart  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	quickBefore = eventHead + `"choices":[{"index":0,"delta":{"content":"`
	quickAfter  = `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
)

func (e quickEngine) stream(q *rawRequest, w *bufio.Writer, events int, pace time.Duration) error {
	w.WriteString(quickStart)
	var text [24]byte
	content := []byte("token")
	for i := range events {
		if pace > 0 {
			if i > 0 {
				sleep(context.Background(), pace)
			}
			content = strconv.AppendInt(text[:0], monotonic(), 10)
		}
		w.WriteString(strconv.FormatInt(int64(len(quickBefore)+len(content)+len(quickAfter)), 16) + "\r\n")
		w.WriteString(quickBefore)
		w.Write(content)
		w.WriteString(quickAfter + "\r\n")
		if err := w.Flush(); err != nil {
			return err
		}
	}
	last := eventHead + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\n"
	if bytes.Contains(q.body, []byte(`"include_usage":true`)) {
		last += eventHead + fmt.Sprintf(`"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`, len(q.body)/4, events) + "\n\n"
	}
	if err := sendChunk(w, last+"data: [DONE]\n\n"); err != nil {
		return err
	}
	return sendChunk(w, "")
}
