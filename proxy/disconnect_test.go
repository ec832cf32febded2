package proxy

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// noticeWithin is what the design allows between a client's FIN and the end of the
// worker's side; it takes a fraction of a millisecond.
const noticeWithin = 100 * time.Millisecond

// selfSigned returns a certificate for tests.
func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// rawTCP returns the socket under a client's connection.
func rawTCP(c net.Conn) *net.TCPConn {
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	return c.(*net.TCPConn)
}

// leave ends the client's side in one of the ways there are.
var leave = map[string]func(c net.Conn){
	"fin":        func(c net.Conn) { _ = c.Close() },
	"rst":        func(c net.Conn) { _ = rawTCP(c).SetLinger(0); _ = rawTCP(c).Close() },
	"half-close": func(c net.Conn) { _ = rawTCP(c).CloseWrite() },
}

func TestDisconnect_EndsTheWorkersSide(t *testing.T) {
	type moment struct {
		name      string
		body      string
		midway    bool
		pipelined bool
	}
	moments := []moment{
		{"before the first byte of a stream", streamBody, false, false},
		{"before the first byte of an answer", plainBody, false, false},
		{"in mid-stream", streamBody, true, false},
		{"before the first byte, next request waiting", streamBody, false, true},
		{"in mid-stream, next request waiting", streamBody, true, true},
	}
	for _, front := range []string{"plain", "tls", "portable"} {
		t.Run(front, func(t *testing.T) {
			seen, gone := make(chan *call, 1), make(chan time.Time, 1)
			w := startWorker(t, func(c *call) bool {
				if strings.Contains(c.Header.Get("X-Midway"), "1") {
					c.sse()
					c.chunk(delta("a"))
				}
				seen <- c
				c.gone()
				gone <- time.Now()
				return false
			})
			o := setup{portable: front == "portable"}
			if front == "tls" {
				o.proxy.TLS = selfSigned(t)
			}
			r := newRig(t, o, w)
			var took []time.Duration
			for _, m := range moments {
				if m.pipelined && front == "portable" {
					continue // blind by nature once the next request waits
				}
				for way, end := range leave {
					c := r.dial()
					header := ""
					if m.midway {
						header = "X-Midway: 1\r\n"
					}
					_, _ = io.WriteString(c, request(pathChat, header, m.body))
					if m.pipelined {
						_, _ = io.WriteString(c, request(pathChat, "", plainBody))
					}
					receive(t, seen)
					if m.midway {
						if _, err := c.Read(make([]byte, 1)); err != nil {
							t.Fatal(err)
						}
					}
					from := time.Now()
					end(c)
					select {
					case at := <-gone:
						took = append(took, at.Sub(from))
					case <-time.After(5 * time.Second):
						t.Fatalf("%s, %s: not noticed", m.name, way)
					}
					r.settled()
					_ = c.Close()
				}
			}
			// On a busy machine a few may wait for a processor.
			if slices.Sort(took); took[len(took)/2] > noticeWithin {
				t.Errorf("half of the clients that left were noticed after %v or more", took[len(took)/2])
			}
			n := 0
			for _, m := range moments {
				if !m.pipelined || front != "portable" {
					n += len(leave)
				}
			}
			if got := int(w.calls.Load()); got != n {
				t.Errorf("the worker got %d requests of %d clients: a pipelined one ran after its client left", got, n)
			}
			if got := int(r.metric("warmroute_proxy_client_disconnects_total")); got != n {
				t.Errorf("%d disconnects were counted of %d", got, n)
			}
			if got := int(r.metric("warmroute_proxy_requests_total", "code=499")); got != n {
				t.Errorf("%d requests ended with 499 of %d", got, n)
			}
			r.stop()
		})
	}
}

// TestDisconnect_ClientThatStopsReading: the server is blocked in a write when the client
// leaves; and one that only stalls is given up after the limit.
func TestDisconnect_ClientThatStopsReading(t *testing.T) {
	gone := make(chan time.Time, 1)
	started := make(chan struct{}, 1)
	w := startWorker(t, func(c *call) bool {
		c.sse()
		started <- struct{}{}
		event := delta(strings.Repeat("x", 8<<10))
		for {
			if _, err := fmt.Fprintf(c.Conn, "%x\r\n%s\r\n", len(event), event); err != nil {
				gone <- time.Now()
				return false
			}
		}
	})
	r := newRig(t, setup{proxy: Config{ClientStall: 300 * time.Millisecond}}, w)
	for _, stall := range []bool{false, true} {
		c := r.dial()
		_ = rawTCP(c).SetReadBuffer(4 << 10)
		_, _ = io.WriteString(c, request(pathChat, "", streamBody))
		receive(t, started)
		from := time.Now()
		limit := 3 * time.Second
		if !stall {
			_, _ = io.ReadFull(c, make([]byte, 64<<10))
			from, limit = time.Now(), noticeWithin
			_ = c.Close()
		}
		select {
		case at := <-gone:
			if d := at.Sub(from); d > limit {
				t.Errorf("stall=%v: given up after %v", stall, d)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("stall=%v: never given up", stall)
		}
		_ = c.Close()
	}
	r.stop()
}

// TestKeepAlive_ManyRequestsOnOneConnection: the watch gives the connection back each time.
func TestKeepAlive_ManyRequestsOnOneConnection(t *testing.T) {
	for _, front := range []string{"plain", "tls", "portable"} {
		w := startWorker(t, func(c *call) bool {
			if strings.Contains(string(c.body), `"stream":true`) {
				c.stream(delta("a"), delta("b")+finish+doneEnd)
			} else {
				c.json(200, "", `{"choices":[]}`)
			}
			return true
		})
		o := setup{portable: front == "portable"}
		if front == "tls" {
			o.proxy.TLS = selfSigned(t)
		}
		r := newRig(t, o, w)
		c := r.dial()
		br := bufio.NewReader(c)
		for i := range 100 {
			body, want := plainBody, `{"choices":[]}`
			if i%2 == 1 {
				body, want = streamBody, delta("a")+delta("b")+finish+doneEnd
			}
			_, _ = io.WriteString(c, request(pathChat, "", body))
			resp, got, err := readResponse(br)
			if err != nil || got != want || resp.StatusCode != 200 {
				t.Fatalf("%s, request %d: %v %q", front, i, err, got)
			}
		}
		// Two pipelined requests are both answered, in order.
		_, _ = io.WriteString(c, request(pathChat, "", streamBody)+request(pathChat, "", plainBody))
		for i, want := range []string{delta("a") + delta("b") + finish + doneEnd, `{"choices":[]}`} {
			if _, got, err := readResponse(br); err != nil || got != want {
				t.Fatalf("%s, pipelined %d: %v %q", front, i, err, got)
			}
		}
		_ = c.Close()
		if n := w.conns.Load(); n > 2 { // one of the probe, one of the requests
			t.Errorf("%s: %d connections to the worker", front, n)
		}
		if n := r.metric("warmroute_proxy_client_disconnects_total"); n != 0 {
			t.Errorf("%s: %v disconnects", front, n)
		}
		r.stop()
	}
}

// TestFC07_EventsAreNotHeldBack: each event reaches the client right after the worker
// wrote it, whatever Accept-Encoding says; a compressed stream passes too.
func TestFC07_EventsAreNotHeldBack(t *testing.T) {
	goOn := make(chan struct{})
	accepted := make(chan string, 2)
	w := startWorker(t, func(c *call) bool {
		accepted <- c.Header.Get("Accept-Encoding")
		encoding := ""
		if c.n == 2 {
			encoding = "Content-Encoding: gzip\r\n"
		}
		c.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + encoding + "Transfer-Encoding: chunked\r\n\r\n")
		for range 10 {
			c.chunk(delta("a"))
			await(goOn)
		}
		c.end()
		return true
	})
	r := newRig(t, setup{}, w)
	for range 2 {
		c := r.dial()
		_, _ = io.WriteString(c, request(pathChat, "Accept-Encoding: gzip\r\n", streamBody))
		br := bufio.NewReader(c)
		for line := ""; line != "\r\n"; { // headers
			line, _ = br.ReadString('\n')
		}
		for i := range 10 {
			_, _ = br.ReadString('\n') // chunk size
			got := make([]byte, len(delta("a"))+2)
			if _, err := io.ReadFull(br, got); err != nil || string(got) != delta("a")+"\r\n" {
				t.Fatalf("event %d: %q, %v", i, got, err)
			}
			goOn <- struct{}{}
		}
		if a := receive(t, accepted); a != "identity" {
			t.Errorf("the worker was asked for encoding %q", a)
		}
		_ = c.Close()
	}
	r.stop()
}
