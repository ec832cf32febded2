package testcluster_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// quickWire is a client's connection that costs little itself, so that what lies between
// shows.
type quickWire struct {
	conn net.Conn
	r    *bufio.Reader
	body []byte // of the last answer
}

func dialQuick(address string) (*quickWire, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &quickWire{conn: conn, r: bufio.NewReaderSize(conn, 16<<10)}, nil
}

// overheadKey is the API key that warmroute asks for. All arms carry it.
const overheadKey = "sk-overhead-of-the-bench"

// request is what a client sends for a chat. Each is one of a conversation of its own: turn
// numbers them within the bytes of the first message.
type request struct {
	bytes []byte
	mark  int // where the number stands
	turn  *atomic.Uint64
}

const requestMark = "0123456789abcdef"

func newRequest(a ask) *request {
	body := newTalk(uint64(a.bytes), a.bytes).body()
	body = bytes.Replace(body, []byte(`"content":"`), []byte(`"content":"`+requestMark+" "), 1)
	if a.events == 0 {
		body = bytes.Replace(body, []byte(`"stream":true`), []byte(`"stream":false`), 1)
	}
	b := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench/1\r\nAccept: application/json\r\nContent-Type: application/json\r\n"+
		"Authorization: Bearer %s\r\nX-Bench-Events: %d\r\nX-Bench-First: %d\r\nX-Bench-Pace: %d\r\nContent-Length: %d\r\n\r\n%s",
		chatPath, overheadKey, a.events, a.first.Microseconds(), a.pace.Microseconds(), len(body), body)
	return &request{bytes: b, mark: bytes.Index(b, []byte(requestMark)), turn: new(atomic.Uint64)}
}

// clone returns a request for another client.
func (r *request) clone() *request {
	c := *r
	c.bytes = bytes.Clone(r.bytes)
	return &c
}

// next returns the bytes of the next request.
func (r *request) next() []byte {
	n := r.turn.Add(1)
	for i := range requestMark {
		r.bytes[r.mark+i] = "0123456789abcdef"[n>>(4*i)&15]
	}
	return r.bytes
}

// do sends a request and reads its answer to the end. piece is called for each piece of the
// body as it arrives, once it is in c.body.
func (c *quickWire) do(request []byte, piece func()) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	length, err := c.head()
	if err != nil {
		return err
	}
	c.body = c.body[:0]
	if length >= 0 {
		return c.take(length, piece)
	}
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
		if err != nil {
			return err
		}
		if err := c.take(int(size), piece); err != nil {
			return err
		}
		if _, err := c.r.Discard(2); err != nil || size == 0 {
			return err
		}
	}
}

// head reads the header of an answer and returns the length of its body, -1 for chunks.
func (c *quickWire) head() (length int, err error) {
	length = -1
	for i := 0; ; i++ {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimSpace(line)
		switch {
		case i == 0 && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")):
			return 0, errors.New(string(line))
		case len(line) == 0:
			return length, nil
		case len(line) > 15 && bytes.EqualFold(line[:15], []byte("content-length:")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[15:]))); err != nil {
				return 0, err
			}
		}
	}
}

// take reads n bytes of a body.
func (c *quickWire) take(n int, piece func()) error {
	at := len(c.body)
	for len(c.body) < at+n {
		if _, err := c.r.Peek(1); err != nil {
			return err
		}
		buf, _ := c.r.Peek(min(c.r.Buffered(), at+n-len(c.body)))
		c.body = append(c.body, buf...)
		if _, err := c.r.Discard(len(buf)); err != nil {
			return err
		}
		piece()
	}
	return nil
}

// sample is what one slice of closed-loop load gave.
type sample struct {
	ttft, total []float64 // µs, one a request
	perSecond   float64
	cpu         float64 // µs of the arm's process a request
}

// closedLoop asks over all wires at once, each as soon as it has its answer, for d.
func (a *overheadArm) closedLoop(wires []*quickWire, r *request, d time.Duration) (s sample, err error) {
	type times struct{ ttft, total []float64 }
	out := make([]times, len(wires))
	errs := make([]error, len(wires))
	var wg sync.WaitGroup
	before, from := a.cpuTime(), time.Now()
	for i, c := range wires {
		wg.Go(func() {
			r := r.clone()
			for at := time.Now(); at.Sub(from) < d && errs[i] == nil; {
				var first time.Time
				errs[i] = c.do(r.next(), func() {
					if first.IsZero() {
						first = time.Now()
					}
				})
				now := time.Now()
				out[i].ttft = append(out[i].ttft, micros(first.Sub(at)))
				out[i].total = append(out[i].total, micros(now.Sub(at)))
				at = now
			}
		})
	}
	wg.Wait()
	took := time.Since(from)
	for _, o := range out {
		s.ttft, s.total = append(s.ttft, o.ttft...), append(s.total, o.total...)
	}
	s.perSecond = float64(len(s.total)) / took.Seconds()
	s.cpu = micros(a.cpuTime()-before) / float64(len(s.total))
	return s, errors.Join(errs...)
}

func micros(d time.Duration) float64 { return float64(d) / 1000 }

// paced plays one stream over each wire at once and returns how long after its engine wrote
// it each event arrived, in µs. The streams begin over one pace; their first two fifths, in
// which some proxies connect to the engine, are left out.
func paced(wires []*quickWire, r *request, events int, pace time.Duration) ([]float64, error) {
	delays := make([][]float64, len(wires))
	errs := make([]error, len(wires))
	var wg sync.WaitGroup
	for i, c := range wires {
		wg.Go(func() {
			time.Sleep(pace * time.Duration(i) / time.Duration(len(wires)))
			seen := 0
			errs[i] = c.do(r.clone().next(), func() {
				now := monotonic()
				for {
					content, end := nextContent(c.body, seen)
					if end < 0 {
						return
					}
					seen = end
					if ns, err := strconv.ParseInt(string(content), 10, 64); err == nil {
						delays[i] = append(delays[i], float64(now-ns)/1000)
					}
				}
			})
			if errs[i] == nil && len(delays[i]) != events {
				errs[i] = fmt.Errorf("%d of %d events arrived", len(delays[i]), events)
			}
		})
	}
	wg.Wait()
	var all []float64
	for _, d := range delays {
		all = append(all, d[len(d)*2/5:]...)
	}
	return all, errors.Join(errs...)
}

// hold opens n streams, some at a time, and returns once the first event of each is there.
// close ends them.
func hold(address string, r *request, n int) (closeAll func(), err error) {
	conns := make([]net.Conn, n)
	var readers sync.WaitGroup
	closeAll = func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		readers.Wait()
	}
	errs := make([]error, 32)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			r := r.clone()
			for j := i; j < n && errs[i] == nil; j += len(errs) {
				if conns[j], errs[i] = net.Dial("tcp", address); errs[i] != nil {
					return
				}
				errs[i] = begin(conns[j], r.next())
			}
		})
	}
	wg.Wait()
	for _, c := range conns { // what follows is thrown away, or the streams would stall
		if c != nil {
			readers.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
	}
	return closeAll, errors.Join(errs...)
}

// begin sends a request and waits for the first event.
func begin(c net.Conn, request []byte) error {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	buf, n := make([]byte, 4<<10), 0
	for !bytes.Contains(buf[:n], []byte(quickAfter)) {
		m, err := c.Read(buf[n:])
		if err != nil {
			return fmt.Errorf("%w after %.200q", err, buf[:n])
		}
		n += m
	}
	return c.SetReadDeadline(time.Time{})
}
