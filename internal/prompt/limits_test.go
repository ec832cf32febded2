package prompt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// content is a chat of one message, whose JSON string is given.
func content(s string) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + s + `"}]}`
}

// hostile are bodies of about n bytes that are meant to cost much, by name.
func hostile(n int) map[string]string {
	fill := func(s string) string { return strings.Repeat(s, n/len(s)) }
	return map[string]string{
		"lines":     content(fill(`a\n`)),
		"letter":    content(fill("a")),
		"spaces":    content(fill(" ")),
		"newlines":  content(fill(`\n`)),
		"specials":  content(fill("<|im_start|><start_of_turn>")),
		"emoji":     content(fill("🙂")),
		"JSON":      content(fill(`{\"id\": 12, \"n\": [1, 2]}\n`)),
		"tools":     `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":[` + fill(`{"a":[1]},`) + `1]}}]}`,
		"kwargs":    `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"x":[` + fill(`1,`) + `1]}}`,
		"arguments": `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"[` + fill(`1\u002c`) + `1]"}}]}]}`,
		"parts":     `{"model":"m","messages":[{"role":"user","content":[` + fill(`{"type":"text","text":"a"},`) + `{"type":"text","text":"a"}]}]}`,
		"messages":  `{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},`, min(n/65, 60_000)) + `{"role":"user","content":"a"}]}`,
	}
}

// allocated is the number of bytes that f allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestLimits_MemoryFollowsTheBody: tokens in this process take a few times the bytes of the
// body more than text blocks do, whatever the body holds.
func TestLimits_MemoryFollowsTheBody(t *testing.T) {
	text := New(Config{})
	for name, s := range hostile(3 << 20) {
		body := []byte(s)
		req := parse(t, openai.Chat, string(body))
		for _, family := range []string{"gemma", "qwen3"} {
			b := localBuilder(t, Config{Now: time.Now}, family)
			base := allocated(func() { text.Build(context.Background(), req, body, nil, kv.Namespace{}, family) })
			more := allocated(func() { b.Build(context.Background(), req, body, nil, kv.Namespace{}, family) }) - base
			if limit := 16*int64(len(body)) + 4<<20; more > limit { // a token is four bytes, and may stand for one
				t.Errorf("%s, %s: %d MB more for a body of %d", name, family, more>>20, len(body)>>20)
			}
		}
	}
}

// TestLimits_DeadlineEndsARendering: a template with many messages is not rendered to its
// end once the time is over, and one that takes no time is.
func TestLimits_DeadlineEndsARendering(t *testing.T) {
	body := []byte(`{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},`, 3000) + `{"role":"user","content":"a"}]}`)
	req := parse(t, openai.Chat, string(body))
	var now time.Time
	b := localBuilder(t, Config{Now: func() time.Time { now = now.Add(localDeadline); return now }}, "qwen3")
	p := b.Build(context.Background(), req, body, nil, kv.Namespace{}, "qwen3")
	if p.Source != kv.SourceText || !strings.Contains(p.Reason, "template takes too long") {
		t.Errorf("source %v: %s", p.Source, p.Reason)
	}
	if n := now.Sub(time.Time{}) / localDeadline; n > 4 {
		t.Errorf("the clock was looked at %d times", n)
	}
	p = localBuilder(t, Config{}, "qwen3").Build(context.Background(), req, body, nil, kv.Namespace{}, "qwen3")
	if p.Source != kv.SourceLocal || p.Reason != "" {
		t.Errorf("without haste: source %v: %s", p.Source, p.Reason)
	}
}

// TestLimits_SegmentsAreFew: a job keeps no room for more segments than it had time for,
// and a large one is not kept.
func TestLimits_SegmentsAreFew(t *testing.T) {
	b := localBuilder(t, Config{}, "gemma")
	m := loadFamily(t, "gemma")
	text := []byte(strings.Repeat("a\n", 1<<20))
	var j job
	looks := 0
	j.clock = clock{now: func() time.Time { looks++; return goldenNow().Add(time.Second) }, deadline: goldenNow()}
	j.cut(m.tok, text)
	if looks != 1 || len(j.parts) > 200 {
		t.Errorf("%d segments were cut past the deadline, the clock was looked at %d times", len(j.parts), looks)
	}
	b.local.tokens(m, 1, nil, text, goldenNow())
	if kept := b.local.jobs.Get().(*job); cap(kept.parts) > keepSegments {
		t.Errorf("a job keeps room for %d segments", cap(kept.parts))
	}
}

// TestLimits_LongTextsHaveTokens: texts of hundreds of kilobytes that people send are read
// whole, without line breaks between letters.
func TestLimits_LongTextsHaveTokens(t *testing.T) {
	names := []string{"qwen3", "llama3", "deepseek_v3", "gemma", "mistral_v3", "gptoss"}
	b := localBuilder(t, Config{}, names...)
	for name, line := range map[string]string{
		"JSON lines": "{\"id\": 12, \"n\": [1, 2]}\n",
		"minified":   `{"id":12,"names":["a","b"]},`,
		"prose":      "The quick brown fox jumps over the lazy dog. ",
		"base64":     "aGVsbG8gd29ybGQhIDEyMw",
		"Chinese":    "今天天气很好，我们去公园。",
	} {
		text := strings.Repeat(line, (600<<10)/len(line))
		body := []byte(content(strings.Trim(string(openai.AppendString(nil, text)), `"`)))
		for _, family := range names {
			p := b.Build(context.Background(), parse(t, openai.Chat, string(body)), body, nil, kv.Namespace{}, family)
			if p.Source != kv.SourceLocal || p.Reason != "" {
				t.Errorf("%s, %s: source %v: %s", name, family, p.Source, p.Reason)
				continue
			}
			if want, err := loadFamily(t, family).Tokenize(openai.Chat, body, StyleVLLM); err != nil || !slices.Equal(want, p.Tokens) {
				t.Errorf("%s, %s: %d tokens, want %d, %v", name, family, len(p.Tokens), len(want), err)
			}
		}
	}
}

// TestLimits_FallThrough: where too little of a prompt is read in time its engine is asked,
// else there are text blocks, and the reason says why.
func TestLimits_FallThrough(t *testing.T) {
	body := []byte(content(strings.Repeat("a", 600<<10)))
	req := parse(t, openai.Chat, string(body))
	e := &engine{}
	const why = "no local tokens: only 12 of 614450 bytes of the prompt can be read within 20ms"
	build := func(src Source) *kv.Prompt {
		b := localBuilder(t, Config{Deadline: time.Minute}, "qwen3")
		return b.Build(context.Background(), req, body, src, kv.Namespace{}, "qwen3")
	}
	p := build(e)
	if expect(t, p, kv.SourceEngine, why); e.calls.Load() != 1 || len(p.Tokens) == 0 {
		t.Errorf("%d calls, %d tokens", e.calls.Load(), len(p.Tokens))
	}
	if p = build(nil); len(p.Text) < 600<<10/kv.TextBlockBytes || len(p.Tokens) > 0 || p.TokenCount < 100_000 {
		t.Errorf("%d text blocks, %d tokens", len(p.Text), len(p.Tokens))
	}
	expect(t, p, kv.SourceText, why)
	p = build(&engine{err: errors.New("engine is away")})
	if p.Source != kv.SourceText || !strings.HasPrefix(p.Reason, why+"; ") || !strings.Contains(p.Reason, "engine is away") {
		t.Errorf("source %v: %s", p.Source, p.Reason)
	}

	body = []byte(`{"model":"m","prompt":"` + strings.Repeat("a", 600<<10) + `"}`)
	p = localBuilder(t, Config{}, "qwen3").Build(context.Background(), parse(t, openai.Completions, string(body)), body, nil, kv.Namespace{}, "qwen3")
	expect(t, p, kv.SourceText, "no local tokens: only 0 of 614400 bytes of the prompt can be read within 20ms")

	// The beginning that was read is known in the next turn, which gets further.
	text := strings.Repeat("0123456789 some words of a long text. ", 100<<10)
	body = []byte(content(text))
	req = parse(t, openai.Chat, string(body))
	tick := goldenNow()
	b := localBuilder(t, Config{Now: func() time.Time { tick = tick.Add(100 * time.Microsecond); return tick }}, "qwen3")
	first := b.Build(context.Background(), req, body, nil, kv.Namespace{}, "qwen3")
	if first.Source != kv.SourceText {
		t.Fatalf("source %v: %s", first.Source, first.Reason)
	}
	for n := 0; ; n++ {
		p := b.Build(context.Background(), req, body, nil, kv.Namespace{}, "qwen3")
		if p.Source == kv.SourceLocal && p.Reason == "" {
			break
		}
		if n > 10 {
			t.Fatalf("source %v: %s", p.Source, p.Reason)
		}
	}
}

// heap is the memory in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemo_HoldsNoMoreThanItsBytes: all that conversations leave behind stays within the
// bound, whatever the block sizes that routers ask for.
func TestMemo_HoldsNoMoreThanItsBytes(t *testing.T) {
	const bound, rounds = 2 << 20, 500
	long := func(r *rand.Rand, n int) []byte {
		c := &talk{messages: []string{fmt.Sprintf(`{"role":"user","content":"%d %s"}`, n, strings.Repeat(someWord(r)+" ", 2000))}}
		return c.body()
	}
	short := func(r *rand.Rand, n int) []byte {
		return []byte(content(fmt.Sprint(n, strings.Repeat(" ", 300), someWord(r), strings.Repeat("\\n ", 300), n)))
	}
	turn := func(r *rand.Rand, n int) []byte {
		return (&talk{messages: longTalk(1+n%20, 1000*(1+n%20)).messages}).body()
	}
	for name, body := range map[string]func(r *rand.Rand, n int) []byte{"long": long, "short": short, "turns": turn} {
		for _, sizes := range [][]int{{1}, {4}, {16}, {64}, {1, 16, 64}} {
			b := localBuilder(t, Config{MemoBytes: bound, CacheBytes: 64 << 10}, "gemma")
			r := rand.New(rand.NewPCG(7, 8))
			var before int64
			for n := range rounds {
				if n == 1 {
					before = heap()
				}
				raw := body(r, n)
				p := b.Build(context.Background(), parse(t, openai.Chat, string(raw)), raw, nil, kv.Namespace{Salt: fmt.Sprint(n / 20)}, "gemma")
				for _, size := range sizes {
					p.Chain(size)
				}
				if b.local.memo.bytes() > bound {
					t.Fatalf("%s, blocks of %d: the memo counts %d of %d bytes", name, sizes, b.local.memo.bytes(), bound)
				}
			}
			held, counted := heap()-before, b.local.memo.bytes()
			if held > bound+512<<10 {
				t.Errorf("%s, blocks of %d: %d KB are held, %d counted, %d allowed", name, sizes, held>>10, counted>>10, bound>>10)
			}
			if held < counted/3 {
				t.Errorf("%s, blocks of %d: %d KB are counted, %d held", name, sizes, counted>>10, held>>10)
			}
			runtime.KeepAlive(b)
		}
	}
}

func someWord(r *rand.Rand) string {
	b := make([]byte, 3+r.IntN(10))
	for i := range b {
		b[i] = 'a' + byte(r.IntN(26))
	}
	return string(b)
}

// TestMemo_TakesManyAtOnce: prompts that are made, hashed and forgotten at the same time are
// right, and counted.
func TestMemo_TakesManyAtOnce(t *testing.T) {
	const bound = 200 << 10
	b := localBuilder(t, Config{MemoBytes: bound}, "qwen3")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := range 100 {
				c := &talk{messages: longTalk(1+n%10, 1000+400*(n%10)).messages}
				raw := c.body()
				ns := kv.Namespace{Salt: fmt.Sprint(n / 20 * (g % 2))}
				p := b.Build(context.Background(), parse(t, openai.Chat, string(raw)), raw, nil, ns, "qwen3")
				for _, size := range []int{16, 1, 1 + g} {
					if got, want := p.Chain(size), kv.AppendSequenceHashes(nil, p.Tokens, size, ns.Seed()); !slices.Equal(got, want) {
						t.Errorf("block hashes of size %d differ", size)
					}
				}
				if held := b.local.memo.bytes(); held > bound {
					t.Errorf("%d of %d bytes", held, bound)
				}
			}
		})
	}
	wg.Wait()
	m := b.local.memo
	var sum int64
	for r := m.mu.ring.next; r != &m.mu.ring; r = r.next {
		sum += r.bytes
		if want := rememberedBytes + heldBytes(int64(16*cap(r.keys)+4*cap(r.tokens))+r.chains.Bytes()); r.bytes < want-8 || r.bytes > want+8 {
			t.Errorf("a prompt counts %d bytes, want %d", r.bytes, want)
		}
	}
	if sum != m.mu.bytes || sum == 0 {
		t.Errorf("%d bytes are counted, the prompts are %d", m.mu.bytes, sum)
	}
}

// TestCache_HoldsNoMoreThanItsBytes: the same for segments, also when many small ones give
// way to large ones.
func TestCache_HoldsNoMoreThanItsBytes(t *testing.T) {
	const bound = 4 << 20
	before := heap()
	c := newCache(bound, func() {})
	for i, n := range []int{1, 3, 20, 2000, 10, 50_000} {
		for k := range 100_000/n + 100 {
			c.put(key{uint64(i), uint64(k)}, Tokens{IDs: make([]uint32, n)})
		}
		if held := heap() - before; held > bound+128<<10 || c.bytes > bound {
			t.Errorf("entries of %d ids: %d KB are held, %d counted, %d allowed", n, held>>10, c.bytes>>10, bound>>10)
		}
	}
	runtime.KeepAlive(c)
}

// BenchmarkLocal_Hostile is the identity step of bodies of 10 MiB that are meant to cost much.
func BenchmarkLocal_Hostile(b *testing.B) {
	for name, s := range hostile(10 << 20) {
		b.Run(name, func(b *testing.B) {
			body := []byte(s)
			req := parse(b, openai.Chat, s)
			builder := localBuilder(b, Config{Now: time.Now}, "gemma")
			b.ReportAllocs()
			for b.Loop() {
				builder.Build(context.Background(), req, body, nil, kv.Namespace{}, "gemma")
			}
		})
	}
}
