package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: how long a client may take that sends n bytes every so often, in virtual time.
func TestPace(t *testing.T) {
	for _, q := range []struct {
		name    string
		n       int
		every   time.Duration
		readBy  time.Duration // the server's own limit
		seconds int           // until it is cut off
		slow    bool          // for its pace
	}{
		{"one byte a second", 1, time.Second, 2 * time.Minute, 30, true},
		{"just too slow", 950, time.Second, 2 * time.Minute, 30, true},
		{"fast enough", 1100, time.Second, 2 * time.Minute, 120, false},
		{"in bursts", 40 << 10, 28 * time.Second, 2 * time.Minute, 120, false},
		{"stalls after a burst", 100 << 10, time.Hour, 2 * time.Minute, 60, true},
		{"silence", 0, time.Hour, 2 * time.Minute, 30, true},
		{"the server's limit comes first", 1, time.Second, 10 * time.Second, 10, false},
		{"no limit of the server's", 1, time.Second, 0, 30, true},
	} {
		t.Run(q.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				l := &listener{metrics: mustMetrics(t)}
				c := &conn{Conn: server, l: l, pace: pace{rate: 1024, window: paceWindow}}
				done := make(chan struct{})
				go func() { // owned by the test: closing the pipe ends it
					defer close(done)
					for q.n > 0 {
						if _, err := client.Write(make([]byte, q.n)); err != nil {
							return
						}
						time.Sleep(q.every)
					}
				}()
				c.begun = true // by the request's header
				start := time.Now()
				c.pace.begin()
				by := time.Time{}
				if q.readBy > 0 {
					by = start.Add(q.readBy)
				}
				_ = c.SetReadDeadline(by)
				_, err := io.Copy(io.Discard, struct{ io.Reader }{c})
				var slow *slowError
				if took := time.Since(start); errors.As(err, &slow) != q.slow || !os.IsTimeout(err) || took.Round(time.Second) != time.Duration(q.seconds)*time.Second {
					t.Errorf("cut off after %v: %v", took, err)
				}
				_ = client.Close()
				_ = c.Close()
				<-done
			})
		})
	}
}

func mustMetrics(t *testing.T) *metrics {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPace_NotWhileIdleOrAnswered: the pace of a request says nothing about a connection
// that waits for its next one, nor about one that waits for an answer.
func TestPace_NotWhileIdleOrAnswered(t *testing.T) {
	w := startWorker(t, func(c *call) bool {
		c.sse()
		for range 5 {
			c.chunk(delta("a"))
			<-time.After(20 * time.Millisecond)
		}
		c.chunk(finish + doneEnd)
		c.end()
		return true
	})
	r := newRig(t, setup{window: 30 * time.Millisecond}, w)
	c := r.dial()
	br := bufio.NewReader(c)
	for i := range 4 {
		raw := request(pathChat, "", streamBody)
		if i%2 == 0 {
			raw = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
		}
		_, _ = io.WriteString(c, raw)
		if resp, got, err := readResponse(br); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %q", err, got)
		}
		<-time.After(100 * time.Millisecond) // more than three windows of silence
	}
	_ = c.Close()
	r.stop()
}

// TestPace_ASlowBodyIsA408: and the answer can be read. Before the body came, the worker
// heard nothing.
func TestPace_ASlowBodyIsA408(t *testing.T) {
	w := startWorker(t, echo)
	r := newRig(t, setup{window: 100 * time.Millisecond, proxy: Config{BodyRate: 100 << 10}}, w)
	for _, framing := range []string{"Content-Length: 1000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
		c := r.dial()
		_, _ = io.WriteString(c, "POST "+pathChat+" HTTP/1.1\r\nHost: x\r\n"+framing)
		stop := make(chan struct{})
		sent := make(chan struct{})
		go func() { // owned by the test, which closes stop and waits for sent
			defer close(sent)
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if _, err := io.WriteString(c, "1\r\n \r\n"); err != nil {
					return
				}
			}
		}()
		resp, body, err := readResponse(bufio.NewReader(c))
		if err != nil || resp.StatusCode != 408 || !resp.Close {
			t.Fatalf("%v %v", err, resp)
		}
		if e := parseError(t, body); e.Code == nil || *e.Code != "request_too_slow" || e.Type != typeTimeout {
			t.Errorf("%s", body)
		}
		close(stop)
		<-sent
		_ = c.Close()
	}
	if n := w.calls.Load(); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}
	// A client with the pace passes, however long it takes.
	large := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 200<<10) + `"}]}`
	if resp, body := r.post("", large); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	r.stop()
}

// TestConnections_AboveTheLimit: those above are told so, health is answered still, those
// far above are closed, and room that is made is used.
func TestConnections_AboveTheLimit(t *testing.T) {
	r := newRig(t, setup{proxy: Config{MaxConns: 4}}, startWorker(t, echo))
	var held []net.Conn
	for range 4 {
		held = append(held, r.dial())
	}
	open := func(n float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%v connections are open", n), func() bool { return r.metric("warmroute_proxy_connections") == n })
	}
	open(4)
	resp, body := r.post("", plainBody)
	if e := parseError(t, body); resp.StatusCode != 503 || !resp.Close || resp.Header.Get("Retry-After") != "1" || !strings.Contains(e.Message, "--max-connections") {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	if resp, _, err := r.exchange("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil || resp.StatusCode != 200 {
		t.Errorf("health: %v %v", err, resp)
	}
	late := r.dial()
	open(5)
	_ = held[0].Close()
	open(4)
	br := bufio.NewReader(late)
	for range 2 { // there is room by now
		_, _ = io.WriteString(late, request(pathChat, "", plainBody))
		if resp, body, err := readResponse(br); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v %s", err, resp, body)
		}
	}
	held[0] = late
	for range spareConns {
		held = append(held, r.dial())
	}
	open(4 + spareConns)
	c := r.dial()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection far above the limit is served")
	}
	_ = c.Close()
	if n := r.metric("warmroute_proxy_refused_connections_total"); n != 4+spareConns {
		t.Errorf("%v refusals were counted", n)
	}
	for _, c := range held {
		_ = c.Close()
	}
	open(0)
	if resp, body := r.post("", plainBody); resp.StatusCode != 200 {
		t.Errorf("afterwards: %d %s", resp.StatusCode, body)
	}
	r.stop()
}

// TestKeepAlive_EndsAsConfigured: an idle connection is closed without a word.
func TestKeepAlive_EndsAsConfigured(t *testing.T) {
	r := newRig(t, setup{proxy: Config{KeepAlive: 50 * time.Millisecond}}, startWorker(t, echo))
	c := r.dial()
	br := bufio.NewReader(c)
	_, _ = io.WriteString(c, request(pathChat, "", plainBody))
	if _, _, err := readResponse(br); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(br); len(got) > 0 || err != nil {
		t.Errorf("%q %v", got, err)
	}
	_ = c.Close()
	r.stop()
}
