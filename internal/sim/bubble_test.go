package sim

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"
)

// TestServer_RunsInVirtualTime: over an in-memory listener in a bubble a worker keeps
// its engine's times exactly, so a test of what stands in front of it needs no real
// time.
func TestServer_RunsInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := fasthttputil.NewInmemoryListener()
		s, err := NewServer(Config{Listener: ln})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()

		c := fasthttp.HostClient{Addr: "w", Dial: func(string) (net.Conn, error) { return ln.Dial() }, StreamResponseBody: true}
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		req.SetRequestURI("http://w/v1/completions")
		req.Header.SetMethod("POST")
		req.Header.SetContentType("application/json")
		req.SetBodyString(`{"prompt":"` + strings.Repeat("word", 800) + `","max_tokens":3,"ignore_eos":true,"stream":true}`)
		start := time.Now()
		if err := c.Do(req, resp); err != nil {
			t.Fatal(err)
		}
		var at []time.Duration
		lines := bufio.NewReader(resp.BodyStream())
		for {
			line, err := lines.ReadString('\n')
			if err != nil || strings.HasPrefix(line, "data: [DONE]") {
				break
			}
			if strings.HasPrefix(line, "data: ") {
				at = append(at, time.Since(start))
			}
		}
		_ = resp.CloseBodyStream()
		c.CloseIdleConnections()
		step := func(kv int) time.Duration {
			return 8*time.Millisecond + 100*time.Microsecond + time.Duration(kv)*20
		}
		first := 108 * time.Millisecond // 800 tokens at 8,000 a second, and the step
		want := []time.Duration{first, first + step(801), first + step(801) + step(802)}
		for i := range want {
			if i >= len(at) || at[i] != want[i] {
				t.Errorf("events at %v, want %v", at, want)
				break
			}
		}
		time.Sleep(time.Minute) // the client's own cleaner ends
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
