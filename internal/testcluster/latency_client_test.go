package testcluster_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// wire is one keep-alive connection, the same client for every arm. It connects with its
// first request: a server does not wait for ever for one.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
	out  []byte
	host string
}

func dial(t testing.TB, base string) *wire {
	c := &wire{host: strings.TrimPrefix(base, "http://")}
	t.Cleanup(func() {
		if c.conn != nil {
			_ = c.conn.Close()
		}
	})
	return c
}

// reading is what came back for one request.
type reading struct {
	status int
	header http.Header
	body   []byte
	ttft   time.Duration   // from before the write to the first event with content, or to the end
	delays []time.Duration // of each paced event, from its engine's write
}

// post sends one request and reads its answer to the end. header is whole lines.
func (c *wire) post(path, header string, body []byte) (reading, error) {
	var r reading
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.host)
		if err != nil {
			return r, err
		}
		c.conn, c.r = conn, bufio.NewReaderSize(conn, 64<<10)
	}
	c.out = append(c.out[:0], "POST "+path+" HTTP/1.1\r\nHost: "+c.host+"\r\nContent-Type: application/json\r\n"+header+"Content-Length: "...)
	c.out = append(strconv.AppendInt(c.out, int64(len(body)), 10), "\r\n\r\n"...)
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return r, err
	}
	from := time.Now()
	parts := net.Buffers{c.out, body}
	if _, err := parts.WriteTo(c.conn); err != nil {
		return r, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	buf, seen := make([]byte, 0, 16<<10), 0
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			now := time.Now()
			for {
				content, end := nextContent(buf, seen)
				if end < 0 {
					break
				}
				seen = end
				if len(content) == 0 {
					continue
				}
				if r.ttft == 0 {
					r.ttft = now.Sub(from)
				}
				if ns, err := strconv.ParseInt(string(content), 10, 64); err == nil {
					r.delays = append(r.delays, time.Duration(now.UnixNano()-ns))
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return r, err
		}
	}
	if r.body = buf; r.ttft == 0 {
		r.ttft = time.Since(from)
	}
	return r, nil
}

var contentKey = []byte(`"content":"`)

// nextContent returns the next content at or behind offset from, and where it ends; -1
// where none is whole.
func nextContent(b []byte, from int) (content []byte, end int) {
	i := bytes.Index(b[from:], contentKey)
	if i < 0 {
		return nil, -1
	}
	start := from + i + len(contentKey)
	n := bytes.IndexByte(b[start:], '"')
	if n < 0 {
		return nil, -1
	}
	return b[start : start+n], start + n
}

// talk is one conversation of the latency benchmark. Its first message begins with words of its own, so
// that nobody knows any prefix of it.
type talk struct {
	rand     *rand.Rand
	messages strings.Builder
}

// newTalk begins a conversation whose body has about size bytes, in messages of at most
// 4 KB.
func newTalk(seed uint64, size int) *talk {
	t := &talk{rand: rand.New(rand.NewPCG(seed, 0x7a1c))}
	t.say("system", min(size/4, 4096))
	for i := 0; t.messages.Len() < size-512; i++ {
		if i > 0 {
			t.say("assistant", 0)
		}
		t.say("user", min(size-t.messages.Len()-200, 4096))
	}
	return t
}

// say adds a message of about size bytes, 400 by default.
func (t *talk) say(role string, size int) {
	if size <= 0 {
		size = 400
	}
	if t.messages.Len() > 0 {
		t.messages.WriteByte(',')
	}
	fmt.Fprintf(&t.messages, `{"role":"%s","content":"`, role)
	for n := 0; n < size; n += 8 {
		fmt.Fprintf(&t.messages, "%07x", t.rand.Uint32()>>4)
		if t.messages.WriteByte(' '); n%64 == 0 {
			t.messages.WriteString(`\n`)
		}
	}
	t.messages.WriteString(`"}`)
}

func (t *talk) body() []byte {
	return []byte(`{"model":"bench","stream":true,"max_tokens":64,"messages":[` + t.messages.String() + `]}`)
}
