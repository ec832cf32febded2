package upstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// eventually waits for ok, which must come true within five seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

func newRouter() *router.Router {
	return router.New(router.Config{Index: index.NewSet(index.Config{}), Workers: new(kv.Workers)})
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
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

// startFleet runs a fleet until the test ends and returns its log.
func startFleet(t *testing.T, cfg FleetConfig) (*Fleet, *logBuffer) {
	t.Helper()
	logs := new(logBuffer)
	cfg.Logger = slog.New(slog.NewTextHandler(logs, nil))
	if cfg.Router == nil {
		cfg.Router = newRouter()
	}
	if cfg.Probe == 0 {
		cfg.Probe = 20 * time.Millisecond
	}
	f, err := NewFleet(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	before := runtime.NumGoroutine()
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		eventually(t, "the fleet's goroutines end", func() bool { return runtime.NumGoroutine() <= before })
	})
	return f, logs
}

// script is a worker that says exactly what its function writes, one call a connection.
type script struct {
	net.Listener
	conns atomic.Int32 // accepted
	wg    sync.WaitGroup
}

// serveScript starts a worker. Each connection gets its number, from 1.
func serveScript(t *testing.T, f func(n int, c net.Conn, br *bufio.Reader)) *script {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{Listener: l}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := int(s.conns.Add(1))
			s.wg.Go(func() {
				defer c.Close()
				f(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.wg.Wait()
	})
	return s
}

func (s *script) url() string { return "http://" + s.Addr().String() }

// readRequest reads one request and its body.
func readRequest(br *bufio.Reader) (*http.Request, string, error) {
	r, err := http.ReadRequest(br)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(r.Body)
	return r, string(b), err
}

func reply(c net.Conn, body string) {
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// reset makes the next close of a connection send RST.
func reset(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }

// lone returns a worker without a fleet that runs.
func lone(t *testing.T, url string, limits Timeouts) *Worker {
	t.Helper()
	f, err := NewFleet(FleetConfig{Router: newRouter(), Workers: []WorkerConfig{{ID: "w", URL: url}}, Timeouts: limits})
	if err != nil {
		t.Fatal(err)
	}
	w := f.Worker("w")
	t.Cleanup(w.pool.close)
	return w
}

func post(body string) *Request {
	return &Request{Method: "POST", Path: "/v1/chat/completions", Header: jsonHeader, Body: []byte(body)}
}
