package upstream

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestAwait: what counts as something to read, in each framing and however the bytes are
// cut, in virtual time. Awaiting takes nothing away from Read.
func TestAwait(t *testing.T) {
	type piece struct {
		at time.Duration
		s  string
	}
	for _, q := range []struct {
		name    string
		framing int
		length  int64
		pieces  []piece
		want    string   // all that Read gives
		silent  []string // what Read had given whenever a second of silence was seen
	}{
		{"length", framingLength, 4, []piece{{0, "ab"}, {2500 * time.Millisecond, "cd"}}, "abcd", []string{"ab", "ab"}},
		{"close", framingClose, 0, []piece{{1500 * time.Millisecond, "ab"}, {1600 * time.Millisecond, "c"}}, "abc", []string{""}},
		{"chunks", framingChunked, 0, []piece{{0, "2\r\nab\r\n"}, {1200 * time.Millisecond, "1\r\nc\r\n0\r\n\r\n"}}, "abc", []string{"ab"}},
		{"a chunk's tail is not yet the next", framingChunked, 0, []piece{{0, "2\r\nab"}, {100 * time.Millisecond, "\r"}, {1200 * time.Millisecond, "\n"}, {2700 * time.Millisecond, "1\r\nc\r\n0\r\n\r\n"}}, "abc", []string{"ab", "ab"}},
		{"a size line is not yet its chunk", framingChunked, 0, []piece{{0, "2\r\nab\r\n"}, {500 * time.Millisecond, "1"}, {1500 * time.Millisecond, "\r\n"}, {2500 * time.Millisecond, "c\r\n0\r\n\r\n"}}, "abc", []string{"ab", "ab"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			done := make(chan struct{})
			go func() { // owned by the test, which waits for done
				defer close(done)
				start := time.Now()
				for _, p := range q.pieces {
					time.Sleep(p.at - time.Since(start))
					_, _ = server.Write([]byte(p.s))
				}
				_ = server.Close()
			}()
			br := bufio.NewReader(client)
			r := &Response{w: &Worker{id: "w", f: &Fleet{cfg: FleetConfig{Timeouts: Timeouts{Idle: time.Minute}}}}, limit: "idle_timeout", timeout: time.Minute, armed: time.Now()}
			r.mu.conn = &conn{Conn: client, br: br}
			r.body.reset(br, q.framing, q.length)
			got, silent := "", []string(nil)
			buf := make([]byte, 64)
			for {
				if !r.Await(time.Second) {
					silent = append(silent, got)
					continue
				}
				n, err := r.Read(buf)
				got += string(buf[:n])
				if err != nil {
					break
				}
			}
			if got != q.want || len(silent) != len(q.silent) {
				t.Fatalf("%s: %q, silent after %q, want %q", q.name, got, silent, q.silent)
			}
			for i := range silent {
				if silent[i] != q.silent[i] {
					t.Errorf("%s: silent after %q, want %q", q.name, silent, q.silent)
				}
			}
			_ = client.Close()
			<-done
		})
	}
}

// TestAwait_TheIdleLimitGoesOn: awaiting in small steps does not put off the idle limit,
// whose passing Read reports as ever.
func TestAwait_TheIdleLimitGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		br := bufio.NewReader(client)
		r := &Response{w: &Worker{id: "w", f: &Fleet{cfg: FleetConfig{Timeouts: Timeouts{Idle: time.Minute}}}}, limit: "idle_timeout", timeout: time.Minute, armed: time.Now()}
		r.mu.conn = &conn{Conn: client, br: br}
		r.body.reset(br, framingClose, 0)
		start, steps := time.Now(), 0
		for !r.Await(7 * time.Second) {
			steps++
		}
		_, err := r.Read(make([]byte, 1))
		var e *Error
		if !errors.As(err, &e) || e.Limit != "idle_timeout" || time.Since(start) != time.Minute || steps != 8 {
			t.Errorf("after %v and %d steps: %v", time.Since(start), steps, err)
		}
		_ = client.Close()
		_ = server.Close()
	})
}
