package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestDo_ReusesAConnectionThatWasReadToItsEnd(t *testing.T) {
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		for {
			_, body, err := readRequest(br)
			if err != nil {
				return
			}
			if body == "chunked" {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked("a", "bc"))
				continue
			}
			reply(c, body)
		}
	})
	w := lone(t, s.url(), Timeouts{})
	for i, body := range []string{"one", "chunked", "three"} {
		r, err := w.Do(context.Background(), post(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if want := map[string]string{"one": "one", "chunked": "abc", "three": "three"}[body]; err != nil || string(got) != want {
			t.Fatalf("request %d: %q, %v", i, got, err)
		}
		_ = r.Close()
		_ = r.Close() // harmless
		if r.Header != nil {
			t.Error("a closed response shows the header of whatever the connection is used for next")
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections for three requests in a row", n)
	}
	if open, idle := w.pool.stats(); open != 1 || idle != 1 {
		t.Errorf("%d open, %d idle", open, idle)
	}
	w.pool.sweep(time.Now().Add(idleLife))
	if open, idle := w.pool.stats(); open != 0 || idle != 0 {
		t.Errorf("after the sweep %d open, %d idle", open, idle)
	}
}

// TestDo_IdleConnectionThatTheWorkerClosed: the usual race with an engine's keep-alive
// costs a client nothing.
func TestDo_IdleConnectionThatTheWorkerClosed(t *testing.T) {
	closed := make(chan struct{})
	s := serveScript(t, func(n int, c net.Conn, br *bufio.Reader) {
		_, body, err := readRequest(br)
		if err != nil {
			return
		}
		reply(c, body)
		if n == 1 {
			_ = c.Close()
			close(closed)
			return
		}
		_, _, _ = readRequest(br)
	})
	w := lone(t, s.url(), Timeouts{})
	for i := range 2 {
		r, err := w.Do(context.Background(), post("x"))
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
		<-closed
	}
	if n := s.conns.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// TestDo_ReusedConnectionThatDies: the worker closes it when the request arrives, which no
// look at the socket could tell. It is sent once more, on a fresh connection.
func TestDo_ReusedConnectionThatDies(t *testing.T) {
	s := serveScript(t, func(n int, c net.Conn, br *bufio.Reader) {
		for i := 0; ; i++ {
			_, body, err := readRequest(br)
			if err != nil || n == 1 && i == 1 {
				reset(c)
				return
			}
			reply(c, body)
		}
	})
	w := lone(t, s.url(), Timeouts{})
	for i := range 2 {
		r, err := w.Do(context.Background(), post("x"))
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}
}

// TestFC02_AFreshConnectionIsNotRetried: the worker took the request and died.
func TestFC02_AFreshConnectionIsNotRetried(t *testing.T) {
	for name, answer := range map[string]string{"before the status line": "", "after it": "HTTP/1.1 200 OK\r\nContent-"} {
		var bodies atomic.Int32
		s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
			if _, _, err := readRequest(br); err == nil {
				bodies.Add(1)
			}
			_, _ = io.WriteString(c, answer)
			if answer == "" {
				reset(c)
			}
		})
		w := lone(t, s.url(), Timeouts{})
		_, err := w.Do(context.Background(), post("x"))
		var e *Error
		want := PhaseAnswer
		if answer != "" {
			want = PhaseBody
		}
		if !errors.As(err, &e) || e.Phase != want || e.Worker != "w" || e.Limit != "" {
			t.Errorf("%s: %v", name, err)
		}
		if n := bodies.Load(); n != 1 {
			t.Errorf("%s: the worker saw %d requests", name, n)
		}
		if open, _ := w.pool.stats(); open != 0 {
			t.Errorf("%s: %d connections are open", name, open)
		}
	}
}

func TestDo_CancelClosesTheConnection(t *testing.T) {
	seen := make(chan string, 1)
	gone := make(chan time.Time, 1)
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		_, body, _ := readRequest(br)
		if body == "midway" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}
		seen <- body
		_, _ = br.ReadByte()
		gone <- time.Now()
	})
	w := lone(t, s.url(), Timeouts{})
	cause := errors.New("enough")
	for _, at := range []string{"before", "midway"} {
		ctx, cancel := context.WithCancelCause(context.Background())
		var canceled time.Time
		result := make(chan error, 1)
		go func() {
			r, err := w.Do(ctx, post(at))
			if err == nil {
				_, err = io.ReadAll(r)
				_ = r.Close()
			}
			result <- err
		}()
		<-seen
		canceled = time.Now()
		cancel(cause)
		if d := (<-gone).Sub(canceled); d > 100*time.Millisecond {
			t.Errorf("%s: the worker noticed after %v", at, d)
		}
		if err := <-result; err == nil || at == "before" && !errors.Is(err, cause) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if open, _ := w.pool.stats(); open != 0 {
		t.Errorf("%d connections are open", open)
	}
}

func TestFC13_EachLimitHasItsName(t *testing.T) {
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		_, body, _ := readRequest(br)
		switch body {
		case "headers only":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		case "silence":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}
		_, _ = br.ReadByte() // until the peer closes
	})
	w := lone(t, s.url(), Timeouts{FirstByte: 80 * time.Millisecond, Idle: 50 * time.Millisecond})
	for body, want := range map[string]struct {
		limit string
		phase Phase
	}{
		"nothing":      {"first_byte_timeout", PhaseAnswer},
		"headers only": {"first_byte_timeout", PhaseBody},
		"silence":      {"idle_timeout", PhaseBody},
	} {
		r, err := w.Do(context.Background(), post(body))
		if err == nil {
			if body == "headers only" {
				err = r.Wait()
			} else {
				_, err = io.ReadAll(r)
			}
			_ = r.Close()
		}
		var e *Error
		if !errors.As(err, &e) || e.Limit != want.limit || e.Phase != want.phase || !strings.Contains(err.Error(), want.limit) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestDo_IdleLimitStartsAnewWithEachRead: no limit on a whole stream.
func TestDo_IdleLimitStartsAnewWithEachRead(t *testing.T) {
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		_, _, _ = readRequest(br)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		tick := time.NewTicker(15 * time.Millisecond)
		defer tick.Stop()
		for range 40 {
			<-tick.C
			_, _ = io.WriteString(c, "1\r\nx\r\n")
		}
		_, _ = io.WriteString(c, "0\r\n\r\n")
	})
	w := lone(t, s.url(), Timeouts{FirstByte: 5 * time.Second, Idle: 500 * time.Millisecond})
	r, err := w.Do(context.Background(), post(""))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || len(got) != 40 {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestDo_HeaderLimitsAndNonsense(t *testing.T) {
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		_, body, _ := readRequest(br)
		switch body {
		case "6k": // FC-10
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Long: "+strings.Repeat("a", 6<<10)+"\r\nContent-Length: 2\r\n\r\nok")
		case "64k":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Long: "+strings.Repeat("s", 64<<10)+"\r\n\r\n")
		case "nonsense":
			_, _ = io.WriteString(c, "secret secret secret\r\n\r\n")
		case "no headers":
			_, _ = io.WriteString(c, `{"secret":"secret"}`)
		case "status":
			_, _ = io.WriteString(c, "HTTP/1.1 099 secret\r\nContent-Length: 0\r\n\r\n")
		case "interim":
			_, _ = io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		case "early": // refuses before it has read the body; then closes
			reply(c, "no")
		}
	})
	w := lone(t, s.url(), Timeouts{})
	f := func(body, want, wantErr string) {
		t.Helper()
		r, err := w.Do(context.Background(), post(body))
		if err != nil {
			if wantErr == "" || !strings.Contains(err.Error(), wantErr) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sss") {
				t.Errorf("%s: %v", body, err)
			}
			return
		}
		defer r.Close()
		if got, err := io.ReadAll(r); string(got) != want || err != nil || wantErr != "" {
			t.Errorf("%s: %q, %v", body, got, err)
		}
	}
	f("6k", "ok", "")
	f("64k", "", "headers exceed")
	f("nonsense", "", "malformed")
	f("no headers", "", "unexpected EOF")
	f("status", "", "malformed response status")
	f("interim", "ok", "")
	f("early", "no", "")
}

func TestDo_TLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(name string, cfg WorkerConfig, ok bool) {
		t.Helper()
		cfg.ID, cfg.URL = "w", s.URL
		fleet, err := NewFleet(FleetConfig{Router: newRouter(), Workers: []WorkerConfig{cfg}})
		if err != nil {
			t.Fatal(err)
		}
		w := fleet.Worker("w")
		defer w.pool.close()
		for range 2 {
			r, err := w.Do(context.Background(), post("hello"))
			if (err == nil) != ok {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil {
				return
			}
			if got, err := io.ReadAll(r); err != nil || string(got) != "hello" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			_ = r.Close()
		}
		if open, idle := w.pool.stats(); open != 1 || idle != 1 {
			t.Errorf("%s: %d open, %d idle after two requests in a row", name, open, idle)
		}
	}
	f("unknown authority", WorkerConfig{}, false)
	f("its authority", WorkerConfig{CA: ca}, true)
	f("no check", WorkerConfig{InsecureSkipVerify: true}, true)
}

// TestFC14_ManyStreamsToOneWorker: fasthttp's own client stops at 512 connections.
func TestFC14_ManyStreamsToOneWorker(t *testing.T) {
	release := make(chan struct{})
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		_, _, _ = readRequest(br)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
		<-release
		_, _ = io.WriteString(c, "0\r\n\r\n")
	})
	w := lone(t, s.url(), Timeouts{})
	const n = 600
	open := make([]*Response, n)
	for i := range open {
		r, err := w.Do(context.Background(), post(""))
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		open[i] = r
	}
	close(release)
	for i, r := range open {
		if got, err := io.ReadAll(r); string(got) != "x" || err != nil {
			t.Fatalf("stream %d: %q, %v", i, got, err)
		}
		_ = r.Close()
	}
}

func TestDo_AuthorizationIsTheWorkersOrTheClients(t *testing.T) {
	got := make(chan http.Header, 1)
	s := serveScript(t, func(_ int, c net.Conn, br *bufio.Reader) {
		r, _, _ := readRequest(br)
		r.Header.Set("Host", r.Host)
		got <- r.Header
		reply(c, "{}")
	})
	for key, want := range map[string]string{"": "Bearer client", "worker-key": "Bearer worker-key"} {
		f, err := NewFleet(FleetConfig{Router: newRouter(), Workers: []WorkerConfig{{ID: "w", URL: s.url() + "/v1", APIKey: key}}})
		if err != nil {
			t.Fatal(err)
		}
		req := post("{}")
		req.Authorization = []byte("Bearer client")
		r, err := f.Worker("w").Do(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		h := <-got
		if a := h["Authorization"]; len(a) != 1 || a[0] != want || h.Get("Host") != s.Addr().String() {
			t.Errorf("key %q: %v", key, h)
		}
	}
}

// TestError_PublicNamesNoAddress: what clients read of a failed worker is its id and the
// cause, whatever the system adds to it.
func TestError_PublicNamesNoAddress(t *testing.T) {
	addr := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 8000}
	op := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Source: addr, Err: err} }
	for want, err := range map[string]error{
		"connection refused":                  op(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		"its host name is not resolved":       op(&net.DNSError{Err: "no such host", Name: "gpu1.internal", Server: "10.0.0.1:53"}),
		"timed out":                           op(os.ErrDeadlineExceeded),
		"the connection failed":               op(errors.New("10.0.0.1 is odd")),
		"its TLS certificate is not accepted": &tls.CertificateVerificationError{Err: errors.New("valid for gpu1.internal")},
		"EOF":                                 io.EOF,
	} {
		e := &Error{Worker: "w1", Err: err}
		if got := e.Public(); got != "worker w1: connect: "+want {
			t.Errorf("%s, want %s", got, want)
		}
		if !strings.HasSuffix(e.Error(), err.Error()) {
			t.Errorf("the log lacks the cause: %s", e)
		}
	}
}
