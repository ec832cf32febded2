package proxy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"
)

// limitedCaller returns the holder of a key with limits.
func limitedCaller(t *testing.T, f func(*Key)) *caller {
	t.Helper()
	ring, err := newKeyring([]Key{tenantKey("a", f)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ring[tenantKey("a").SHA256]
}

// refused names what stands in the way, "" for nothing.
func refused(r *refusal) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%s=%d wait %v", r.limit, r.is, r.wait)
}

func TestLimits_RequestsPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limitedCaller(t, func(k *Key) { k.RequestsPerMinute = 60 })
		enter := func(want string) {
			t.Helper()
			if got := refused(c.enter(time.Now())); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		for range 60 {
			enter("")
		}
		enter("requests_per_minute=60 wait 1s")
		time.Sleep(400 * time.Millisecond)
		enter("requests_per_minute=60 wait 600ms")
		time.Sleep(600 * time.Millisecond)
		enter("") // who waits as long as it was told gets in
		enter("requests_per_minute=60 wait 1s")
		time.Sleep(time.Hour)
		for range 60 { // no more than a minute's worth is saved up
			enter("")
		}
		enter("requests_per_minute=60 wait 1s")
	})
}

// TestLimits_NeverMoreThanTheRate: whatever the arrivals, no window of a minute sees more
// than what the bucket held and what came in.
func TestLimits_NeverMoreThanTheRate(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		const limit = 30
		c := limitedCaller(t, func(k *Key) { k.RequestsPerMinute = limit })
		var times []time.Time
		start := time.Now()
		for time.Since(start) < time.Hour {
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second)))
			if c.enter(time.Now()) == nil {
				times = append(times, time.Now())
			}
		}
		for i := range times {
			n := 0
			for j := i; j < len(times) && times[j].Sub(times[i]) < time.Minute; j++ {
				n++
			}
			if n > 2*limit {
				t.Fatalf("seed %d: %d requests within a minute", seed, n)
			}
		}
		if got := len(times); got > limit*61+1 || got < limit*59 {
			t.Errorf("seed %d: %d requests in an hour at %d a minute", seed, got, limit)
		}
	})
}

func TestLimits_TokensPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limitedCaller(t, func(k *Key) { k.TokensPerMinute = 6000 })
		step := func(tokens int, want string) {
			t.Helper()
			r := c.enter(time.Now())
			if r == nil {
				r = c.take(tokens, time.Now())
			}
			if got := refused(r); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		step(4000, "")
		step(3000, "tokens_per_minute=6000 wait 10s")
		step(2000, "")
		step(1, "tokens_per_minute=6000 wait 10ms")
		c.leave(-1000, time.Now()) // the prompt was shorter than estimated
		step(1000, "")
		c.leave(12000, time.Now()) // an answer longer than all that is left is a debt
		step(1, "tokens_per_minute=6000 wait 2m0.01s")
		time.Sleep(2*time.Minute + 10*time.Millisecond)
		step(1, "")
		time.Sleep(10 * time.Minute)
		step(50000, "") // larger than a minute's worth: passes with a full bucket, and is paid for
		step(1, "tokens_per_minute=6000 wait 7m20.01s")
		time.Sleep(8 * time.Minute)
		step(50000, "tokens_per_minute=6000 wait 20s")
		c.leave(-1_000_000, time.Now()) // what comes back does not overflow
		step(6000, "")
		step(1, "tokens_per_minute=6000 wait 10ms")
	})
}

// TestLimits_RefusedUsesNothing: a request that a limit refuses takes none of the others.
func TestLimits_RefusedUsesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limitedCaller(t, func(k *Key) { k.RequestsPerMinute, k.MaxInflight = 3, 1 })
		if r := c.enter(time.Now()); r != nil {
			t.Fatal(refused(r))
		}
		for range 10 {
			if got := refused(c.enter(time.Now())); got != "max_inflight=1 wait 1s" {
				t.Errorf("%q", got)
			}
		}
		c.leave(0, time.Now())
		for range 2 {
			if r := c.enter(time.Now()); r != nil {
				t.Error(refused(r))
			}
			c.leave(0, time.Now())
		}
		if got := refused(c.enter(time.Now())); got != "requests_per_minute=3 wait 20s" {
			t.Errorf("%q", got)
		}
	})
}

// TestLimits_InflightUnderLoad: never more than the limit at a time, and none is left over,
// also while the limits are changed.
func TestLimits_InflightUnderLoad(t *testing.T) {
	const limit = 7
	c := limitedCaller(t, func(k *Key) { k.MaxInflight = limit })
	var now, most, in atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 500 {
				if c.enter(time.Now()) != nil {
					continue
				}
				in.Add(1)
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				c.allowance.set(&c.Key)
				now.Add(-1)
				c.leave(0, time.Now())
			}
		})
	}
	wg.Wait()
	if most.Load() > limit || in.Load() == 0 || c.allowance.mu.inflight != 0 {
		t.Errorf("%d at a time, %d came in, %d are left", most.Load(), in.Load(), c.allowance.mu.inflight)
	}
}

// TestLimits_ManyTenants: ten thousand keys that use up their limits do not see each other
// and leave nothing behind but their counts.
func TestLimits_ManyTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := make([]Key, 10_000)
		for i := range keys {
			keys[i] = tenantKey("t"+strconv.Itoa(i), func(k *Key) { k.RequestsPerMinute = 1 + i%3 })
		}
		ring, err := newKeyring(keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			c, n := ring[keys[i].SHA256], 0
			for c.enter(time.Now()) == nil {
				c.leave(0, time.Now())
				n++
			}
			if n != 1+i%3 {
				t.Fatalf("key %d: %d requests", i, n)
			}
		}
		again, err := newKeyring(keys, ring)
		if err != nil || again[keys[0].SHA256].allowance != ring[keys[0].SHA256].allowance {
			t.Errorf("a reload forgot what was used: %v", err)
		}
	})
}

func TestLimits_Headers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limitedCaller(t, func(k *Key) { k.RequestsPerMinute, k.TokensPerMinute = 60, 6000 })
		for range 3 {
			c.enter(time.Now())
		}
		c.take(5990, time.Now())
		time.Sleep(1500 * time.Millisecond)
		var h fasthttp.ResponseHeader
		c.writeLimits(&h, time.Now())
		for name, want := range map[string]string{
			"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "58", "x-ratelimit-reset-requests": "1.5s",
			"x-ratelimit-limit-tokens": "6000", "x-ratelimit-remaining-tokens": "160", "x-ratelimit-reset-tokens": "58.4s",
		} {
			if got := string(h.Peek(name)); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		var none fasthttp.ResponseHeader
		limitedCaller(t, func(*Key) {}).writeLimits(&none, time.Now())
		for k, v := range none.All() {
			if strings.Contains(string(k), "Ratelimit") {
				t.Errorf("without limits: %s: %s", k, v)
			}
		}
	})
}

// TestLimits_OverHTTP: the answer above each limit, what each kind of answer costs, and that
// the end of a request, however it comes, makes room for the next.
func TestLimits_OverHTTP(t *testing.T) {
	goOn, started := make(chan struct{}), make(chan struct{}, 1)
	w := startWorker(t, func(c *call) bool {
		switch c.Header.Get("X-Case") {
		case "slow":
			started <- struct{}{}
			await(goOn)
			return echo(c)
		case "usage":
			c.stream(delta("a"), delta("b")+finish+usage+doneEnd)
		case "no usage":
			c.stream(delta("a"), delta("b")+finish+doneEnd)
		case "whole":
			c.json(200, "", `{"choices":[],"usage":{"prompt_tokens":500,"completion_tokens":11}}`)
		case "error":
			c.json(400, "", `{"error":{"message":"context"}}`)
		case "break":
			c.sse()
			c.chunk(delta("a") + delta("b") + delta("c"))
			c.reset()
			return false
		}
		return true
	})
	r := newRig(t, setup{proxy: Config{Retries: -1, Keys: []Key{
		tenantKey("one", func(k *Key) { k.MaxInflight = 1 }),
		tenantKey("few", func(k *Key) { k.RequestsPerMinute = 1 }),
		tenantKey("tokens", func(k *Key) { k.TokensPerMinute = 1_000_000 }),
		tenantKey("poor", func(k *Key) { k.TokensPerMinute = 10 }),
	}}}, w)
	demand := func(who, header string, status int, limit string) {
		t.Helper()
		resp, body := r.post(bearer(who)+header, plainBody)
		if resp.StatusCode != status {
			t.Fatalf("%s: %d %s", who, resp.StatusCode, body)
		}
		if status != 429 {
			return
		}
		e := parseError(t, body)
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		if e.Code == nil || *e.Code != "rate_limit_exceeded" || e.Type != typeRateLimit || !strings.Contains(e.Message, limit) || after < 1 || after > 3600 {
			t.Errorf("%s: %s, Retry-After %q", who, body, resp.Header.Get("Retry-After"))
		}
		if n := r.metric("warmroute_proxy_key_refusals_total", "key="+who, "limit="+limit); n != 1 {
			t.Errorf("%s: %v refusals were counted", who, n)
		}
	}
	slow := r.dial()
	_, _ = io.WriteString(slow, request(pathChat, bearer("one")+"X-Case: slow\r\n", plainBody))
	receive(t, started)
	demand("one", "", 429, limitInflight)
	_ = slow.Close() // a client that leaves makes room too
	r.settled()
	close(goOn)
	demand("one", "X-Case: whole\r\n", 200, "")

	demand("few", "X-Case: whole\r\n", 200, "")
	demand("few", "X-Case: whole\r\n", 429, limitRequests)

	demand("poor", "X-Case: whole\r\n", 200, "") // 511 tokens of 10
	demand("poor", "X-Case: whole\r\n", 429, limitTokens)

	prompt := 0 // its estimate: what an answer without usage costs at least
	for _, q := range []struct {
		name string
		cost func() int
	}{
		{"no usage", func() int { return prompt + 2 }},
		{"usage", func() int { return 11 }},
		{"whole", func() int { return 511 }},
		{"error", func() int { return 0 }},
		{"break", func() int { return prompt + 3 }},
	} {
		if err := r.SetAccess([]Key{tenantKey("else")}, nil); err != nil { // forget what was used
			t.Fatal(err)
		}
		if err := r.SetAccess([]Key{tenantKey("tokens", func(k *Key) { k.TokensPerMinute = 1_000_000 })}, nil); err != nil {
			t.Fatal(err)
		}
		body := streamBody
		if q.name == "whole" {
			body = plainBody
		}
		c, _ := r.authenticate(header("Authorization", "Bearer "+keyOf("tokens")))
		// No time passes for the bucket, so that its level is what was used.
		c.allowance.mu.tokens.at = time.Now().Add(time.Hour)
		_, _, _ = r.exchange(request(pathChat, bearer("tokens")+"X-Case: "+q.name+"\r\n", body))
		r.settled()
		prompt = r.cfg.Router.Decisions()[0].PromptTokens
		if got := 1_000_000 - int(c.allowance.mu.tokens.level); got != q.cost() {
			t.Errorf("%s: cost %d tokens, want %d (prompt %d)", q.name, got, q.cost(), prompt)
		}
		if c.allowance.mu.inflight != 0 {
			t.Errorf("%s: %d are left in flight", q.name, c.allowance.mu.inflight)
		}
	}
	r.stop()
}

// header returns the header of a request with one field.
func header(name, value string) *fasthttp.RequestHeader {
	h := new(fasthttp.RequestHeader)
	h.Set(name, value)
	return h
}
