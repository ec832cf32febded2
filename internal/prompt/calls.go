package prompt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
)

const (
	// callTimeout bounds a call that its request no longer waits for: its answer still
	// serves the next turn.
	callTimeout = 5 * time.Second
	// maxCalls and maxCallBytes bound the calls under way and the bodies they hold.
	maxCalls     = 128
	maxCallBytes = 128 << 20
	// maxLate calls of one model past their deadline mean that its tokenizer is not
	// keeping up: until one returns, requests do not wait for it.
	maxLate = 3
)

// calls runs the calls of engine tokenizers: one at a time for equal inputs, answers
// cached, also those that come late.
type calls struct {
	cfg      Config
	metrics  *metrics
	maxBytes int // maxCallBytes
	wg       sync.WaitGroup
	mu       struct {
		sync.Mutex
		cache   *cache
		running map[key]*call
		late    map[string]int // by model
		bytes   int            // bodies of running calls
		closed  bool
	}
}

// call is one call under way; tokens and err are set before done is closed.
type call struct {
	model  string
	bytes  int
	late   bool // past its deadline; guarded by calls.mu
	ended  bool // has returned; guarded by calls.mu
	cancel context.CancelFunc
	done   chan struct{}
	tokens Tokens
	err    error
}

func (c *calls) init(cfg Config, m *metrics) {
	c.cfg, c.metrics, c.maxBytes = cfg, m, maxCallBytes
	c.mu.cache = newCache(cfg.CacheBytes, m.cacheEvicted.Inc)
	c.mu.running = make(map[key]*call)
	c.mu.late = make(map[string]int)
}

func (c *calls) close() {
	c.mu.Lock()
	c.mu.closed = true
	for _, r := range c.mu.running {
		r.cancel()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

func (c *calls) cached(k key) (Tokens, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.cache.get(k)
}

// tokens returns the tokens of the input that k names, or why it cannot. It copies
// body if it needs it.
func (c *calls) tokens(ctx context.Context, k key, src Source, model string, kind openai.Kind, body []byte) (Tokens, reason) {
	c.mu.Lock()
	if t, ok := c.mu.cache.get(k); ok {
		c.mu.Unlock()
		c.metrics.cacheHits.Inc()
		return t, reason{}
	}
	r, why := c.joinLocked(k, src, model, kind, body)
	c.mu.Unlock()
	c.metrics.cacheMisses.Inc()
	if r == nil {
		return Tokens{}, why
	}
	timer := time.NewTimer(c.cfg.Deadline)
	defer timer.Stop()
	select {
	case <-r.done:
		if r.err != nil {
			return Tokens{}, reason{"error", "engine tokenizer: " + shorten(r.err.Error())}
		}
		return r.tokens, reason{}
	case <-ctx.Done():
		return Tokens{}, reason{"canceled", "the request ended before the engine's tokenizer answered"}
	case <-timer.C:
		c.markLate(r)
		return Tokens{}, reason{"deadline", fmt.Sprintf("engine tokenizer did not answer within %v", c.cfg.Deadline)}
	}
}

// joinLocked returns the running call for k, started if need be, or why there is none.
func (c *calls) joinLocked(k key, src Source, model string, kind openai.Kind, body []byte) (*call, reason) {
	if r, ok := c.mu.running[k]; ok {
		return r, reason{}
	}
	switch {
	case c.mu.closed:
		return nil, reason{"closed", "shutting down"}
	case c.mu.late[model] >= maxLate:
		return nil, reason{"slow", fmt.Sprintf("engine tokenizer is not keeping up: %d calls are past %v", c.mu.late[model], c.cfg.Deadline)}
	case len(c.mu.running) >= maxCalls || c.mu.bytes+len(body) > c.maxBytes && len(c.mu.running) > 0:
		return nil, reason{"busy", fmt.Sprintf("%d calls of engine tokenizers are under way", len(c.mu.running))}
	}
	// Not the request's context: the call may outlive the request, and its values.
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	r := &call{model: model, bytes: len(body), cancel: cancel, done: make(chan struct{})}
	c.mu.running[k] = r
	c.mu.bytes += r.bytes
	body = bytes.Clone(body)
	c.wg.Go(func() { c.run(ctx, k, r, src, kind, body) }) // close waits for it
	return r, reason{}
}

func (c *calls) run(ctx context.Context, k key, r *call, src Source, kind openai.Kind, body []byte) {
	defer r.cancel()
	start := c.cfg.Now()
	r.tokens, r.err = src.Tokenize(ctx, r.model, kind, body)
	if r.err == nil && len(r.tokens.IDs) == 0 {
		r.err = errors.New("the engine returned no tokens")
	}
	took := c.cfg.Now().Sub(start)

	c.mu.Lock()
	r.ended = true
	delete(c.mu.running, k)
	c.mu.bytes -= r.bytes
	if r.late {
		if c.mu.late[r.model]--; c.mu.late[r.model] == 0 {
			delete(c.mu.late, r.model)
		}
	}
	if r.err == nil {
		c.mu.cache.put(k, r.tokens)
	}
	c.metrics.cacheBytes.Set(float64(c.mu.cache.bytes))
	late := r.late
	c.mu.Unlock()
	close(r.done)
	c.metrics.observeCall(took, late, r.err)
}

// markLate books that a call is past its deadline.
func (c *calls) markLate(r *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.ended && !r.late {
		r.late = true
		c.mu.late[r.model]++
	}
}
