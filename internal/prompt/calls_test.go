package prompt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// engine tokenises each byte of a body's message contents as one id, after a delay.
type engine struct {
	delay atomic.Int64
	calls atomic.Int64
	err   error
	mu    sync.Mutex
	last  []byte
}

func (e *engine) lastBody() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

func (e *engine) Tokenize(ctx context.Context, model string, kind openai.Kind, body []byte) (Tokens, error) {
	e.calls.Add(1)
	e.mu.Lock()
	e.last = body
	e.mu.Unlock()
	if d := time.Duration(e.delay.Load()); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return Tokens{}, ctx.Err()
		}
	}
	if e.err != nil {
		return Tokens{}, e.err
	}
	var v openai.Request
	if err := openai.ParseRequest(kind, body, &v); err != nil {
		return Tokens{}, err
	}
	t := Tokens{Prefix: -1}
	add := func(b []byte) {
		for _, c := range b {
			t.IDs = append(t.IDs, uint32(c))
		}
	}
	for _, m := range v.Messages {
		if m.Media && t.Prefix < 0 {
			t.Prefix = len(t.IDs)
		}
		add(m.Content.Of(body))
	}
	add(v.Prompt.Of(body))
	return t, nil
}

func turns(n int) string {
	var messages []string
	for i := range n {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%d %s"}`, i, strings.Repeat("word ", 100)))
	}
	return chat("", messages...)
}

func expect(t *testing.T, p *kv.Prompt, source kv.Source, reason string) {
	t.Helper()
	if p.Source != source || p.Reason != reason {
		t.Errorf("source %v reason %q, want %v %q", p.Source, p.Reason, source, reason)
	}
	if (source == kv.SourceEngine) != p.Exact() {
		t.Errorf("source %v with %d tokens", p.Source, len(p.Tokens))
	}
}

func TestEngine_TokensAreExactAndCached(t *testing.T) {
	b, e := New(Config{}), &engine{}
	defer b.Close()
	body := turns(2)
	p := build(t, b, e, body)
	expect(t, p, kv.SourceEngine, "")
	if p.TokenCount != len(p.Tokens) || len(p.Tokens) < 1000 || len(p.Text) == 0 {
		t.Errorf("%d of %d tokens, %d text blocks", len(p.Tokens), p.TokenCount, len(p.Text))
	}
	again := build(t, b, e, "\n "+strings.Replace(body, `"model":"m"`, `"temperature":1,"model" : "m"`, 1))
	expect(t, again, kv.SourceEngine, "")
	if &again.Tokens[0] != &p.Tokens[0] || e.calls.Load() != 1 {
		t.Errorf("an equal input was tokenised again: %d calls", e.calls.Load())
	}
	if build(t, b, e, turns(3)); e.calls.Load() != 2 {
		t.Errorf("%d calls for 2 inputs", e.calls.Load())
	}
	if r := b.ratios.of("m"); r >= startBytesPerToken {
		t.Errorf("bytes per token stay at %v", r)
	}
}

func TestEngine_OneCallForEqualInputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := New(Config{}), &engine{}
		defer b.Close()
		e.delay.Store(int64(30 * time.Millisecond))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { expect(t, build(t, b, e, turns(2)), kv.SourceEngine, "") })
		}
		wg.Wait()
		if e.calls.Load() != 1 {
			t.Errorf("%d calls", e.calls.Load())
		}
	})
}

// TestEngine_LateAnswersServeTheNextTurn: past the deadline a request goes by text; the
// answer is kept, and the next turn starts with it even where its own is late again.
func TestEngine_LateAnswersServeTheNextTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := New(Config{}), &engine{}
		defer b.Close()
		e.delay.Store(int64(200 * time.Millisecond))
		const late = "engine tokenizer did not answer within 50ms"
		start := time.Now()
		first := build(t, b, e, turns(2))
		expect(t, first, kv.SourceText, late)
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("the request waited %v", took)
		}
		time.Sleep(time.Second)
		expect(t, build(t, b, e, turns(2)), kv.SourceEngine, "")
		if e.calls.Load() != 1 {
			t.Errorf("%d calls", e.calls.Load())
		}
		next := build(t, b, e, turns(3))
		expect(t, next, kv.SourceEngine, late+"; tokens are those of an earlier turn")
		want := build(t, b, e, turns(2)).Tokens
		if len(next.Tokens) != len(want) || next.TokenCount <= len(want) {
			t.Errorf("%d of %d tokens, want the %d of the earlier turn", len(next.Tokens), next.TokenCount, len(want))
		}
	})
}

// TestEngine_SlowTokenizerIsNotWaitedFor: once it is plainly not keeping up, requests
// lose no time on it until an answer has come.
func TestEngine_SlowTokenizerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := New(Config{}), &engine{}
		defer b.Close()
		e.delay.Store(int64(time.Hour))
		for i := range maxLate {
			build(t, b, e, turns(i+1))
		}
		start := time.Now()
		p := build(t, b, e, turns(9))
		expect(t, p, kv.SourceText, "engine tokenizer is not keeping up: 3 calls are past 50ms")
		if took := time.Since(start); took != 0 {
			t.Errorf("the request waited %v", took)
		}
		time.Sleep(callTimeout)
		e.delay.Store(0)
		expect(t, build(t, b, e, turns(9)), kv.SourceEngine, "")
	})
}

func TestEngine_CallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := New(Config{Deadline: time.Second}), &engine{}
		e.delay.Store(int64(time.Hour))
		var wg sync.WaitGroup
		for i := range maxCalls {
			wg.Go(func() { build(t, b, e, turns(i+1)) })
		}
		synctest.Wait()
		expect(t, build(t, b, e, turns(maxCalls+1)), kv.SourceText, "128 calls of engine tokenizers are under way")
		b.Close() // ends them at once
		wg.Wait()
		expect(t, build(t, b, e, turns(1)), kv.SourceText, "shutting down")
		if b.calls.mu.bytes != 0 || len(b.calls.mu.running) != 0 || len(b.calls.mu.late) != 0 {
			t.Errorf("left behind: %+v", &b.calls.mu)
		}
	})
}

func TestEngine_BodiesUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := New(Config{}), &engine{}
		defer b.Close()
		e.delay.Store(int64(time.Second))
		b.calls.maxBytes = 2000
		expect(t, build(t, b, e, turns(3)+strings.Repeat(" ", 1000)), kv.SourceText, "engine tokenizer did not answer within 50ms")
		expect(t, build(t, b, e, turns(2)), kv.SourceText, "1 calls of engine tokenizers are under way")
	})
}

func TestEngine_FailuresGiveText(t *testing.T) {
	b, e := New(Config{}), &engine{err: errors.New("404 from http://w1/tokenize " + strings.Repeat("é", 200))}
	defer b.Close()
	p := build(t, b, e, turns(1))
	if p.Source != kv.SourceText || !strings.HasPrefix(p.Reason, "engine tokenizer: 404 from http://w1/tokenize é") || len(p.Reason) > 230 {
		t.Errorf("source %v reason %q", p.Source, p.Reason)
	}
	if build(t, b, e, turns(1)); e.calls.Load() != 2 {
		t.Error("a failure was cached")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	slow := &engine{}
	slow.delay.Store(int64(time.Minute))
	body := turns(1)
	p = b.Build(ctx, parse(t, openai.Chat, body), []byte(body), slow, kv.Namespace{}, "m2")
	expect(t, p, kv.SourceText, "the request ended before the engine's tokenizer answered")
}

func TestEngine_StopsBeforeThePlaceholder(t *testing.T) {
	b, e := New(Config{}), &engine{}
	defer b.Close()
	image := `{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`
	p := build(t, b, e, chat("", sys, image, user))
	expect(t, p, kv.SourceEngine, "identity stops before the image, audio or file in messages[1]")
	if len(p.Tokens) != len(`"be brief"`) || p.TokenCount <= len(p.Tokens) {
		t.Errorf("%d of %d tokens", len(p.Tokens), p.TokenCount)
	}
	p = build(t, b, e, chat("", image, user))
	expect(t, p, kv.SourceText, "identity stops before the image, audio or file in messages[0]")
}

func TestEngine_BatchAsksForTheFirst(t *testing.T) {
	b, e := New(Config{}), &engine{}
	defer b.Close()
	p := build(t, b, e, `{"model":"alias","prompt":["o\u006ee","two"],"add_special_tokens":false,"n":1}`)
	expect(t, p, kv.SourceEngine, "identity of the first of 2 prompts")
	if want := `{"model":"m","prompt":"o\u006ee","add_special_tokens":false}`; string(e.lastBody()) != want {
		t.Errorf("asked for %s, want %s", e.lastBody(), want)
	}
}

// TestEngine_BodyIsACopy: the request's memory is used again while a late call runs.
func TestEngine_BodyIsACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := New(Config{}), &engine{}
		defer b.Close()
		e.delay.Store(int64(time.Second))
		body := []byte(turns(1))
		want := bytes.Clone(body)
		b.Build(context.Background(), parse(t, openai.Chat, string(body)), body, e, kv.Namespace{}, "m")
		for i := range body {
			body[i] = 'X'
		}
		time.Sleep(2 * time.Second)
		if !bytes.Equal(e.lastBody(), want) {
			t.Error("the call reads the request's memory")
		}
	})
}

func TestCache_KeepsWithinItsBytes(t *testing.T) {
	evicted := 0
	c := newCache(0, func() { evicted++ })
	one := (&entry{tokens: Tokens{IDs: make([]uint32, 100)}}).bytes() + c.byKey.entryBytes()
	c.max = 3 * one
	put := func(i uint64, n int) { c.put(key{i}, Tokens{IDs: make([]uint32, n)}) }
	for i := range uint64(4) {
		put(i, 100)
		c.get(key{0})
	}
	has := func(i uint64) bool { _, ok := c.get(key{i}); return ok }
	if !has(0) || has(1) || !has(2) || !has(3) || evicted != 1 || c.bytes != c.max {
		t.Errorf("evicted %d, %d of %d bytes", evicted, c.bytes, c.max)
	}
	put(9, 1000)
	if has(9) || evicted != 2 || len(c.byKey.entries) != 3 {
		t.Errorf("an entry beyond the bound: evicted %d, %d entries", evicted, len(c.byKey.entries))
	}
	put(2, 50)
	if c.bytes != c.max-225 || len(c.byKey.entries) != 3 {
		t.Errorf("replacing: %d bytes, %d entries", c.bytes, len(c.byKey.entries))
	}
}

func TestRatios(t *testing.T) {
	b := New(Config{})
	f := func(model string, want float64) {
		t.Helper()
		if got := b.ratios.of(model); got < want-0.01 || got > want+0.01 {
			t.Errorf("%s: %v bytes per token, want %v", model, got, want)
		}
	}
	f("a", 4)
	for range 100 {
		b.Learn("a", 3000, 1000)
		b.Learn("b", 300, 10) // too short
		b.Learn("c", 1_000_000, 100)
	}
	f("a", 3)
	f("b", 4)
	f("c", maxBytesPerToken)

	body := turns(4)
	req := parse(t, openai.Chat, body)
	for range 100 {
		p := build(t, b, nil, body)
		b.Observe("m", req, p, len(formOf(t, b, body).text)/5)
	}
	f("m", 5)
	for i := range 2 * maxRatios {
		b.Learn(fmt.Sprint(i), 1000, 100)
	}
	if n := len(b.ratios.mu.byModel); n != maxRatios || testutil.ToFloat64(b.metrics.ratiosRefused) != maxRatios+3 {
		t.Errorf("%d models, %v refused", n, testutil.ToFloat64(b.metrics.ratiosRefused))
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	b, e := New(Config{Registerer: reg, Now: func() time.Time { return time.Unix(0, 0) }}), &engine{}
	defer b.Close()
	build(t, b, e, turns(1))
	build(t, b, e, turns(1))
	build(t, b, nil, turns(1))
	build(t, b, nil, `{"model":"m","prompt":[1]}`)
	want := `
# HELP warmroute_prefix_source_total Prompts by the source of their identity and the reason why it was not a better one.
# TYPE warmroute_prefix_source_total counter
warmroute_prefix_source_total{reason="exact",source="client"} 1
warmroute_prefix_source_total{reason="exact",source="engine"} 2
warmroute_prefix_source_total{reason="no_tokenizer",source="text"} 1
# HELP warmroute_prefix_cache_hits_total Prompts whose engine tokens were cached.
# TYPE warmroute_prefix_cache_hits_total counter
warmroute_prefix_cache_hits_total 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "warmroute_prefix_source_total", "warmroute_prefix_cache_hits_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(b.metrics.cacheBytes); n < 2000 {
		t.Errorf("cache of %v bytes", n)
	}
}

// FuzzBuild: whatever is a request has an identity or a reason, and its boundaries lie
// in its text.
func FuzzBuild(f *testing.F) {
	f.Add([]byte(chat(`,"chat_template_kwargs":{"b":[{"y":1,"x":"\u00e9"}],"a":true},"tools":[{"a":1}]`, sys, user)))
	f.Add([]byte(chat("", sys, `{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}],"tool_calls":[{"id":1}]}`, user)))
	f.Add([]byte(`{"model":"m","prompt":[[1,2],[3]]}`))
	b := New(Config{})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []openai.Kind{openai.Chat, openai.Completions} {
			var v openai.Request
			if openai.ParseRequest(kind, body, &v) != nil {
				continue
			}
			p := b.Build(context.Background(), &v, body, nil, kv.Namespace{}, v.Model)
			if p.Reason == "" && !p.Exact() {
				t.Fatalf("%q: neither tokens nor a reason", body)
			}
			last := 0
			for _, n := range p.TextBoundaries {
				if n <= last || n > len(p.Text) {
					t.Fatalf("%q: boundaries %v of %d blocks", body, p.TextBoundaries, len(p.Text))
				}
				last = n
			}
			if last != len(p.Text) {
				t.Fatalf("%q: boundaries %v of %d blocks", body, p.TextBoundaries, len(p.Text))
			}
		}
	})
}

// BenchmarkBuild makes the identity of a 300 KB chat, text alone and with cached
// engine tokens.
func BenchmarkBuild(b *testing.B) {
	var messages []string
	for i := range 100 {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%d %s"}`, i, strings.Repeat(`The quick brown fox \"jumps\" over the lazy dog, says func(a, b int).\n`, 42)))
	}
	body := chat("", messages...)
	for _, c := range []struct {
		name string
		src  Source
	}{{"text", nil}, {"engine", &engine{}}} {
		b.Run(c.name, func(b *testing.B) {
			bd := New(Config{})
			defer bd.Close()
			req := parse(b, openai.Chat, body)
			raw := []byte(body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				bd.Build(context.Background(), req, raw, c.src, kv.Namespace{}, "m")
			}
		})
	}
}
