package proxy

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
)

// allowance is what one key may use and has used: requests at a time, and two token
// buckets that hold a minute's worth and fill up evenly. One that lacks a limit keeps no
// count for it. There is one for each name of a key, so its number is bounded by the
// configuration.
type allowance struct {
	mu struct {
		sync.Mutex
		maxInflight, inflight int
		requests, tokens      bucket
	}
}

// bucket is a token bucket. Its level may be negative: an answer may be longer than what
// was left, and the next requests wait until that is paid off.
type bucket struct {
	limit int // a minute's worth, and what it holds; 0 is no limit
	level float64
	at    time.Time // when level was right
}

// rounding is what a sum may be off after many small steps.
const rounding = 1e-6

// refill brings the level up to now.
func (b *bucket) refill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.level = min(float64(b.limit), b.level+float64(b.limit)*d.Minutes())
		b.at = now
	}
}

// wait returns how long it takes until the level is n, at most a full bucket.
func (b *bucket) wait(n float64) time.Duration {
	missing := min(n, float64(b.limit)) - b.level
	if b.limit == 0 || missing <= rounding {
		return 0
	}
	micros := missing / float64(b.limit) * float64(time.Minute/time.Microsecond)
	return time.Duration(math.Ceil(micros-rounding)) * time.Microsecond
}

// setLimit changes the limit; what was used stays used.
func (b *bucket) setLimit(limit int, now time.Time) {
	if b.limit == 0 || limit == 0 {
		*b = bucket{limit: limit, level: float64(limit), at: now}
		return
	}
	b.refill(now)
	b.level += float64(limit - b.limit)
	b.limit = limit
}

// set takes over the limits of a key.
func (a *allowance) set(k *Key) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.maxInflight = k.MaxInflight
	a.mu.requests.setLimit(k.RequestsPerMinute, now)
	a.mu.tokens.setLimit(k.TokensPerMinute, now)
}

// The limits of a key, as metrics and errors name them.
const (
	limitInflight = "max_inflight"
	limitRequests = "requests_per_minute"
	limitTokens   = "tokens_per_minute"
)

// refusal says which limit stands in the way of a request.
type refusal struct {
	limit string // one of the constants above
	is    int
	wait  time.Duration // until it may pass; not before
}

// enter lets one request in, which leave must end, or says why not. A refused request uses
// up nothing.
func (c *caller) enter(now time.Time) *refusal {
	if c == nil {
		return nil
	}
	m := &c.allowance.mu
	m.Lock()
	defer m.Unlock()
	m.requests.refill(now)
	m.tokens.refill(now)
	switch {
	case m.tokens.wait(1) > 0:
		return &refusal{limitTokens, m.tokens.limit, m.tokens.wait(1)}
	case m.requests.wait(1) > 0:
		return &refusal{limitRequests, m.requests.limit, m.requests.wait(1)}
	case m.maxInflight > 0 && m.inflight >= m.maxInflight:
		return &refusal{limitInflight, m.maxInflight, time.Second}
	}
	m.inflight++
	if m.requests.limit > 0 {
		m.requests.level--
	}
	return nil
}

// take books n tokens of a prompt for a request that has entered. One that is larger than
// a minute's worth passes when the bucket is full. A request that is refused here has been
// counted as one.
func (c *caller) take(n int, now time.Time) *refusal {
	if c == nil {
		return nil
	}
	m := &c.allowance.mu
	m.Lock()
	defer m.Unlock()
	if m.tokens.limit == 0 {
		return nil
	}
	m.tokens.refill(now)
	if w := m.tokens.wait(float64(n)); w > 0 {
		return &refusal{limitTokens, m.tokens.limit, w}
	}
	m.tokens.level -= float64(n)
	return nil
}

// leave ends what enter began. more is what the request cost beyond what was taken; it is
// negative where it cost less.
func (c *caller) leave(more int, now time.Time) {
	if c == nil {
		return
	}
	m := &c.allowance.mu
	m.Lock()
	defer m.Unlock()
	m.inflight--
	if m.tokens.limit > 0 {
		m.tokens.refill(now)
		m.tokens.level = min(m.tokens.level-float64(more), float64(m.tokens.limit))
	}
}

// settle ends what the turn's key has booked: by what the worker reported, else by what was
// taken for the prompt and seen of the answer. An error of a worker costs nothing. left says
// that the client went away before the end.
func (t *turn) settle(left bool) {
	if !t.entered {
		return
	}
	cost := t.taken
	switch {
	case t.used >= 0:
		cost = t.used
	case t.relay != nil:
		cost += t.relay.seen.Deltas
	case !left && t.status >= 400:
		cost = 0
	}
	t.who.leave(cost-t.taken, time.Now())
}

// spend remembers what the worker reported of a turn.
func (t *turn) spend(u openai.Usage) {
	if t.who == nil || !u.Known() {
		return
	}
	prompt, output := u.PromptTokens, max(u.CompletionTokens, 0)
	if prompt < 0 {
		prompt = t.taken
	}
	t.used = prompt + output
	t.who.promptTokens.Add(float64(prompt))
	t.who.outputTokens.Add(float64(output))
}

// enter lets the turn in as far as the limits of its key do.
func (t *turn) enter() *fault {
	if t.who == nil {
		return nil
	}
	r := t.who.enter(t.start)
	if t.entered = r == nil; t.entered {
		t.who.requests.Inc()
	}
	return t.limited(r)
}

// take books the tokens of the turn's prompt.
func (t *turn) take() *fault {
	if t.who == nil {
		return nil
	}
	n := t.prompt.TokenCount
	r := t.who.take(n, time.Now())
	if r == nil {
		t.taken = n
	}
	return t.limited(r)
}

// limited makes a refusal the turn's answer; nil for none.
func (t *turn) limited(r *refusal) *fault {
	if r == nil {
		return nil
	}
	t.s.metrics.keyRefusals.WithLabelValues(t.who.Name, r.limit).Inc()
	return faultLimit(r)
}

// writeLimits gives the client OpenAI's header fields about the limits that its key has.
func (c *caller) writeLimits(h *fasthttp.ResponseHeader, now time.Time) {
	if c == nil {
		return
	}
	m := &c.allowance.mu
	m.Lock()
	m.requests.refill(now)
	m.tokens.refill(now)
	requests, tokens := m.requests, m.tokens
	m.Unlock()
	write := func(b *bucket, limit, remaining, reset string) {
		if b.limit == 0 {
			return
		}
		var digits [20]byte
		h.SetBytesV(limit, strconv.AppendInt(digits[:0], int64(b.limit), 10))
		h.SetBytesV(remaining, strconv.AppendInt(digits[:0], int64(max(b.level+rounding, 0)), 10))
		h.Set(reset, b.wait(float64(b.limit)).Round(time.Millisecond).String())
	}
	write(&requests, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests")
	write(&tokens, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens")
}
