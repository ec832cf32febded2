package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/upstream"
)

// moods are the ways in which a worker answers the request with a marker, in its header and
// in its body; one that returns false closes the connection.
var moods = []func(c *call, marker, answer string) bool{
	func(c *call, marker, answer string) bool { // of a known length
		c.write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Marker: %s\r\nContent-Length: %d\r\n\r\n%s", marker, len(answer), answer))
		return true
	},
	func(c *call, marker, answer string) bool { // hints first, which are not the answer's
		c.write("HTTP/1.1 103 Early Hints\r\nX-Marker: hint\r\nLink: </" + marker + ">\r\n\r\n")
		c.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Marker: " + marker + "\r\nTransfer-Encoding: chunked\r\n\r\n")
		c.chunk(delta(answer))
		c.chunk(finish + doneEnd)
		c.end()
		return true
	},
	func(c *call, marker, answer string) bool { // late, in small parts, with trailers
		c.write("HTTP/1.1 200 OK\r\nX-Marker: " + marker)
		<-time.After(time.Duration(rand.IntN(3)) * time.Millisecond)
		c.write("\r\nContent-Type: text/event-stream\r\nTrailer: X-Late\r\nTransfer-Encoding: chunked\r\n\r\n")
		for _, part := range strings.SplitAfter(answer, " ") {
			c.chunk(delta(part))
			<-time.After(time.Duration(rand.IntN(3)) * time.Millisecond)
		}
		c.chunk(finish + usage + doneEnd)
		c.write("0\r\nX-Late: " + marker + "\r\n\r\n")
		return true
	},
	func(c *call, marker, answer string) bool { // until it closes the connection
		c.write("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\nX-Marker: " + marker + "\r\n\r\n" + delta(answer) + finish + doneEnd)
		return false
	},
	func(c *call, marker, answer string) bool { // dies in mid-stream
		c.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Marker: " + marker + "\r\nTransfer-Encoding: chunked\r\n\r\n")
		c.chunk(delta(answer))
		c.reset()
		return false
	},
	func(c *call, _, _ string) bool { // dies without a word
		c.reset()
		return false
	},
	func(c *call, marker, answer string) bool { // says more than it was asked for
		whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Marker: %s\r\nContent-Length: %d\r\n\r\n%s", marker, len(answer), answer)
		c.write(whole + "HTTP/1.1 200 OK\r\nX-Marker: surplus\r\nContent-Length: 7\r\n\r\nsurplus")
		return true
	},
}

// marked answers each request with its own marker alone.
func marked(c *call) bool {
	marker := c.Header.Get("X-Marker")
	if marker == "" {
		c.json(200, "", "{}") // the fleet's own question
		return true
	}
	if !strings.Contains(string(c.body), marker) {
		c.json(200, "", `"the header and body of two requests are mixed"`)
		return true
	}
	answer := strings.Repeat(marker+" ", 1+rand.IntN(20))
	return moods[rand.IntN(len(moods))](c, marker, answer)
}

// crossing is a crowd of clients and what they got.
type crossing struct {
	r             *rig
	next          atomic.Int64 // marker given
	whole, broken atomic.Int64
	left          atomic.Int64
	wrong         atomic.Int64
}

func (x *crossing) foul(format string, args ...any) {
	if x.wrong.Add(1) <= 5 {
		x.r.t.Errorf(format, args...)
	}
}

// client sends up to six requests on one connection, some of them two at once, and may leave
// at any moment.
func (x *crossing) client() {
	c := x.r.dial()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	br := bufio.NewReaderSize(c, 512)
	for range 1 + rand.IntN(3) {
		markers, raw := x.ask()
		_, _ = io.WriteString(c, raw)
		if rand.IntN(3) == 0 {
			x.left.Add(1)
			x.leave(c, br, raw)
			return
		}
		for _, marker := range markers {
			if rand.IntN(10) == 0 {
				<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
			}
			if resp, body, err := readResponse(br); !x.judge(marker, resp, body, err) {
				return
			}
		}
	}
}

// ask returns one or two requests and their markers.
func (x *crossing) ask() (markers []string, raw string) {
	n := 1 + rand.IntN(2)
	for range n {
		marker := fmt.Sprintf("mark-%08d", x.next.Add(1))
		body := strings.Replace([]string{streamBody, streamBody, plainBody}[rand.IntN(3)], "hello", marker, 1)
		r := request(pathChat, "X-Marker: "+marker+"\r\n", body)
		if n == 1 && rand.IntN(8) == 0 {
			r = strings.Replace(r, "HTTP/1.1", "HTTP/1.0", 1)
		}
		markers, raw = append(markers, marker), raw+r
	}
	return markers, raw
}

// leave ends the client's side at once, soon, or after some of the answer.
func (x *crossing) leave(c net.Conn, br *bufio.Reader, raw string) {
	switch rand.IntN(4) {
	case 1:
		<-time.After(time.Duration(rand.IntN(5000)) * time.Microsecond)
	case 2:
		if _, err := br.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) {
			x.foul("no answer to %q: %v", raw, err)
		}
	case 3:
		_, _ = br.Read(make([]byte, 1+rand.IntN(600)))
	}
	if rand.IntN(2) == 0 {
		_ = rawTCP(c).SetLinger(0)
		_ = rawTCP(c).Close()
	}
}

// judge looks at the answer to the request with a marker and tells whether another can come.
func (x *crossing) judge(marker string, resp *http.Response, body string, err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		x.foul("%s has no end: %v, %v, %.200q", marker, err, resp, body)
	}
	if resp == nil {
		x.broken.Add(1)
		return false
	}
	good := resp.StatusCode == 200
	if got := resp.Header.Get("X-Marker"); good && got != marker || resp.Header.Get("Link") != "" {
		x.foul("the answer to %s has the header %v", marker, resp.Header)
	}
	rest := strings.ReplaceAll(body, marker, "")
	if strings.Contains(rest, "mark-") || strings.Contains(rest, "surplus") || strings.Contains(rest, "mixed") || good && rest == body {
		x.foul("the answer to %s is %.300q", marker, body)
	}
	if err != nil || !good {
		x.broken.Add(1)
	} else {
		x.whole.Add(1)
	}
	return err == nil && !resp.Close
}

// TestAnswersNeverCross: many clients, whose connections, descriptors and worker
// connections are used again and again, leave at random moments, pipeline, read slowly;
// workers die, hint, trail and say too much. What a client gets is its own or an error.
func TestAnswersNeverCross(t *testing.T) {
	for _, front := range []string{"plain", "tls", "portable"} {
		t.Run(front, func(t *testing.T) {
			w1, w2, w3 := startWorker(t, marked), startWorker(t, marked), startWorker(t, marked)
			o := setup{portable: front == "portable", engine: upstream.EngineVLLM}
			if front == "tls" {
				o.proxy.TLS = selfSigned(t)
			}
			r := newRig(t, o, w1, w2, w3)
			x := &crossing{r: r}
			var wg sync.WaitGroup
			for range 150 {
				wg.Go(func() {
					for range 2 { // the second on descriptors that were used before
						x.client()
					}
				})
			}
			wg.Wait()
			t.Logf("%d whole, %d broken, %d left, %d wrong", x.whole.Load(), x.broken.Load(), x.left.Load(), x.wrong.Load())
			if x.whole.Load() == 0 {
				t.Error("no answer was whole")
			}
			r.settled()
			eventually(t, "no connection is watched", func() bool {
				r.leavers.mu.Lock()
				defer r.leavers.mu.Unlock()
				return len(r.leavers.mu.conns) == 0
			})
			r.stop()
		})
	}
}
