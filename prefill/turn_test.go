package prefill

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// still returns a Prefiller that nobody runs: what is queued stays queued.
func still(t testing.TB, cfg Config) *Prefiller {
	g := &rig{t: t, numbers: &kv.Workers{}, quiet: true}
	cfg.Router = router.New(router.Config{Index: index.NewSet(index.Config{}), Workers: g.numbers})
	cfg.Sender, cfg.Identify = g, g.identify
	if cfg.Default == "" {
		cfg.Default = ModeOn
	}
	return New(cfg)
}

// arrive parses a body and tells p of it.
func arrive(t testing.TB, p *Prefiller, body, hint string) *Turn {
	t.Helper()
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, []byte(body), &v); err != nil {
		t.Fatal(err)
	}
	return p.Arrived(Arrival{Request: &v, Body: []byte(body), Hint: hint})
}

const hello = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`

// TestTurn_OneWarmUpInEveryShapeOfStream: each finished turn queues exactly one, and each
// other none, whatever frames come and however often the end is told.
func TestTurn_OneWarmUpInEveryShapeOfStream(t *testing.T) {
	const (
		role   = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
		text   = `{"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}`
		finish = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
		both   = `{"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}`
		usage  = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`
		mixed  = `{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":9}}`
		done   = `[DONE]`
		broken = `{"error":{"message":"engine dead"}}`
		cut    = `{"choices":[{"index":0,"delta":{"content":"Hel`
		length = `{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`
		second = `{"choices":[{"index":1,"delta":{"content":"Hi"},"finish_reason":"stop"}]}`
		nan    = `{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"logprob":NaN}]}}]}`
	)
	f := func(what string, want int, ok bool, body string, chunks ...string) {
		t.Helper()
		p := still(t, Config{})
		turn := arrive(t, p, body, "")
		for _, c := range chunks {
			turn.Observe(openai.Event{Data: []byte(c), Error: c == broken})
		}
		for range 3 {
			turn.Finish(End{OK: ok})
		}
		if n := len(p.mu.jobs); n != want {
			t.Errorf("%s: %d warm-ups", what, n)
		}
		for _, j := range p.mu.jobs {
			j.turn.drop()
		}
		if n := p.held.Load(); n != 0 {
			t.Errorf("%s: %d bytes are still held", what, n)
		}
	}
	f("plain", 1, true, hello, role, text, finish, usage, done)
	f("finish with content", 1, true, hello, role, both, done)
	f("finish twice", 1, true, hello, text, finish, finish, done)
	f("finish, then another", 1, true, hello, text, finish, length, done)
	f("usage frames with choices", 1, true, hello, text, mixed, mixed, usage, done)
	f("usage in every frame", 1, true, hello, `{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}`, mixed, done)
	f("no [DONE]", 1, true, hello, text, finish)
	f("[DONE] twice", 1, true, hello, text, finish, done, done)
	f("NaN", 1, true, hello, nan, finish, done)
	f("error event", 0, true, hello, text, broken, done)
	f("error after the finish", 0, true, hello, text, finish, broken)
	f("client gone", 0, false, hello, text, finish, done)
	f("no finish", 0, true, hello, text, done)
	f("nothing", 0, true, hello)
	f("cut off", 0, true, hello, text, cut)
	f("length", 1, true, hello, text, length, done)
	f("length without text", 0, true, hello, role, length, done)
	f("n=2", 0, true, strings.Replace(hello, `"stream"`, `"n":2,"stream"`, 1), text, second, finish, done)
	f("an answer that nobody asked for twice", 1, true, hello, text, second, finish, done)
}

// FC-29: three interleaved choices are not mixed into one history.
func TestFC29_ChoicesAreNotMixed(t *testing.T) {
	p := still(t, Config{})
	turn := arrive(t, p, `{"model":"m","n":3,"messages":[{"role":"user","content":"hi"}]}`, "")
	if turn.Wanted() {
		t.Error("a turn of three choices is wanted")
	}
	m := observed(
		`{"choices":[{"index":2,"delta":{"content":"C"},"finish_reason":"stop"},{"index":0,"delta":{"content":"A"}}]}`,
		`{"choices":[{"index":1,"delta":{"content":"B"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"A"},"finish_reason":"stop"}]}`)
	if string(m.content) != "AA" || m.finish != "stop" {
		t.Errorf("the first choice is %q, %q", m.content, m.finish)
	}
}

// TestFC28_NoThinkingIsEchoed under either name, both, or within the content.
func TestFC28_NoThinkingIsEchoed(t *testing.T) {
	for _, delta := range []string{
		`{"reasoning":"SECRET"}`, `{"reasoning_content":"SECRET"}`, `{"reasoning":"SECRET","reasoning_content":"SECRET"}`,
		`{"content":"<think>SECRET</think>"}`, `{"content":"SECRET</think>"}`,
	} {
		m := observed(`{"choices":[{"index":0,"delta":`+delta+`}]}`, `{"choices":[{"index":0,"delta":{"content":"Yes"},"finish_reason":"stop"}]}`)
		if !m.thought() && !m.thoughtInline() {
			t.Errorf("%s is not recognised as reasoning", delta)
		}
		got, err := warm(t, hello, m)
		if err != nil || strings.Contains(got, "SECRET") || strings.Contains(got, "think") || !strings.Contains(got, `"Yes"`) {
			t.Errorf("%s: %v %s", delta, err, got)
		}
	}
}

// TestFC27_ParallelCalls: two calls with valid arguments, or no warm request at all, for
// each way in which engines number the pieces; testdata/warm/tools shows the bodies.
func TestFC27_ParallelCalls(t *testing.T) {
	f := func(what string, want int, pieces ...string) {
		t.Helper()
		var chunks []string
		for _, p := range pieces {
			chunks = append(chunks, `{"choices":[{"index":0,"delta":{"tool_calls":[`+p+`]}}]}`)
		}
		m := observed(append(chunks, `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`)...)
		got, err := warm(t, hello, m)
		if n := strings.Count(got, `"type":"function"`); n != want {
			t.Errorf("%s: %d calls (%v): %s", what, n, err, got)
		}
	}
	a1, a2 := `"id":"a","function":{"name":"f","arguments":"{\"x\""}}`, `"id":"b","function":{"name":"g","arguments":"{\"y\""}}`
	f("indexes", 2, `{"index":0,`+a1, `{"index":1,`+a2, `{"index":0,"function":{"arguments":":1}"}}`, `{"index":1,"function":{"arguments":":2}"}}`)
	f("all 0, ids", 2, `{"index":0,`+a1, `{"index":0,`+a2, `{"index":0,"id":"a","function":{"arguments":":1}"}}`, `{"index":0,"id":"b","function":{"arguments":":2}"}}`)
	f("none", 2, `{`+a1, `{"function":{"arguments":":1}"}}`, `{`+a2, `{"function":{"arguments":":2}"}}`)
	f("all 0, ids once", 0, `{"index":0,`+a1, `{"index":0,`+a2, `{"index":0,"function":{"arguments":":1}"}}`, `{"index":0,"function":{"arguments":":2}"}}`)
}

// TestFC31_TruncatedCallIsNotReplayed.
func TestFC31_TruncatedCallIsNotReplayed(t *testing.T) {
	m := observed(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"path\":\"a.t"}}]}}]}`,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`)
	if got, err := warm(t, hello, m); err == nil {
		t.Errorf("a warm request was built: %s", got)
	}
}

// TestArrived_KnowsTheNextTurn by its messages and nothing else.
func TestArrived_KnowsTheNextTurn(t *testing.T) {
	const u1, a1, u2 = `{"role":"user","content":"one"}`, `{"role":"assistant","content":"x"}`, `{"role":"user","content":"two"}`
	body := func(messages ...string) string {
		return `{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`
	}
	f := func(what string, want bool, a Arrival, next string) {
		t.Helper()
		p := still(t, Config{})
		var v openai.Request
		for i, b := range []string{body(u1), next} {
			if err := openai.ParseRequest(openai.Chat, []byte(b), &v); err != nil {
				t.Fatal(err)
			}
			at := Arrival{Request: &v, Body: []byte(b)}
			if i == 1 {
				at.Key, at.Namespace = a.Key, a.Namespace
			}
			turn := p.Arrived(at)
			if i == 1 {
				if got := turn != nil && turn.prev != nil; got != want {
					t.Errorf("%s: recognised is %v", what, got)
				}
				return
			}
			turn.Response([]byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`))
			turn.Finish(End{OK: true})
		}
	}
	f("the next turn", true, Arrival{}, body(u1, a1, u2))
	f("two turns later", true, Arrival{}, body(u1, a1, u2, a1, u2))
	f("other spacing between messages", true, Arrival{}, body(u1, " "+a1, "\n"+u2))
	f("another assistant message", true, Arrival{}, body(u1, `{"role":"assistant","content":"edited"}`, u2))
	f("one message more", false, Arrival{}, body(u1, a1))
	f("the same", false, Arrival{}, body(u1))
	f("another start", false, Arrival{}, body(u2, a1, u2))
	f("another tenant", false, Arrival{Key: "k"}, body(u1, a1, u2))
	f("another salt", false, Arrival{Namespace: kv.Namespace{Salt: "s"}}, body(u1, a1, u2))
	f("another model", false, Arrival{}, strings.Replace(body(u1, a1, u2), `"m"`, `"n"`, 1))
}

// TestArrived_HeaderWinsOverBodyOverConfig.
func TestArrived_HeaderWinsOverBodyOverConfig(t *testing.T) {
	f := func(want bool, cfg Config, header, inBody string) {
		t.Helper()
		body := hello
		if inBody != "" {
			body = strings.Replace(hello, `"stream"`, `"nvext":{"agent_hints":{"speculative_prefill":`+inBody+`}},"stream"`, 1)
		}
		var v openai.Request
		if err := openai.ParseRequest(openai.Chat, []byte(body), &v); err != nil {
			t.Fatal(err)
		}
		p := still(t, cfg)
		turn := p.Arrived(Arrival{Request: &v, Body: []byte(body), Key: "k", Hint: header})
		if got := turn.Wanted(); got != want {
			t.Errorf("%+v, header %q, body %q: wanted is %v", cfg, header, inBody, got)
		}
		turn.Finish(End{})
		if p.held.Load() != 0 {
			t.Errorf("bytes are still held")
		}
	}
	off, on := Config{Default: ModeOff}, Config{Default: ModeOn}
	f(false, off, "", "")
	f(true, on, "", "")
	f(true, off, "", "true")
	f(false, on, "", "false")
	f(true, off, " True ", "false")
	f(false, on, "0", "true")
	f(true, off, "auto", "")
	f(true, on, "perhaps", "")
	f(true, Config{Default: ModeOff, Models: map[string]Mode{"m": ModeOn}}, "", "")
	f(false, Config{Default: ModeOff, Models: map[string]Mode{"m": ModeOn}, Keys: map[string]Mode{"k": ModeOff}}, "", "")
	f(true, Config{Default: ModeOff, Keys: map[string]Mode{"k": ModeAuto}}, "", "")
}

// TestNil: without a Prefiller every call is nothing.
func TestNil(t *testing.T) {
	var p *Prefiller
	turn := arrive(t, p, hello, "1")
	turn.Observe(openai.Event{Data: []byte("{}")})
	turn.Response(nil)
	turn.Finish(End{OK: true})
	p.Yield(kv.WorkerRank{})
	p.Pause("w", time.Second)
	if turn.State() != "" || turn.Wanted() {
		t.Error("a nil turn says something")
	}
}

// TestBounds_EverythingIsCapped and every cap counts what it refused.
func TestBounds_EverythingIsCapped(t *testing.T) {
	registry := prometheus.NewRegistry()
	p := still(t, Config{HeldBytes: 100 << 10, Registerer: registry})
	finish := func(i int) {
		turn := arrive(t, p, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%d"}]}`, i), "")
		turn.Response([]byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`))
		turn.Finish(End{OK: true})
	}
	for i := range maxConversations + 10 {
		finish(i)
	}
	if n, jobs := p.sizes(); n != maxConversations || jobs > maxJobs || len(p.mu.fresh) > maxJobs {
		t.Errorf("%d conversations, %d warm-ups", n, jobs)
	}
	g := &rig{t: t, registry: registry}
	if got := g.counts(); got["skipped/queue"] != maxConversations+10-maxJobs {
		t.Errorf("outcomes: %v", got)
	}
	big := strings.Repeat("x", 90<<10)
	turn := arrive(t, p, `{"model":"m","messages":[{"role":"user","content":"`+big+`"}]}`, "")
	if turn.Wanted() {
		t.Error("a body beyond the cap is kept")
	}
	turn.Finish(End{OK: true})
	turn = arrive(t, p, hello, "")
	turn.Observe(openai.Event{Data: []byte(`{"choices":[{"index":0,"delta":{"content":"` + big + `"}}]}`)})
	if turn.Wanted() || turn.held != 0 {
		t.Error("a reply beyond the cap is kept")
	}
	turn.Finish(End{OK: true})
	if got := g.counts(); got["skipped/bytes"] != 2 {
		t.Errorf("outcomes: %v", got)
	}
	if n := p.held.Load(); n > 100<<10 || n < 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestCanary_NoPromptIsShown in metrics or on the debug page, nor any key of a client.
func TestCanary_NoPromptIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: ModeOn}})
		c := &chat{rig: g, name: "a"}
		for i := range 4 {
			if i == 2 {
				g.mu.Lock()
				g.answer = func(context.Context) (Answer, error) { return Answer{}, fmt.Errorf("CANARY-3 refused") }
				g.mu.Unlock()
			}
			c.turn(say{User: someText("CANARY-1", 400), Reasoning: someText("CANARY-2", 300), Reply: someText("CANARY-4", 800)})
			time.Sleep(time.Second)
		}
		page, err := json.Marshal(g.prefill.Debug())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), `"outcome":"warmed"`) || !strings.Contains(string(page), `"outcome":"failed"`) {
			t.Errorf("the page shows no warm-ups: %s", page)
		}
		families, err := g.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if all := string(page) + fmt.Sprint(families); strings.Contains(all, "CANARY") {
			t.Errorf("a prompt is shown: %s", all)
		}
		g.close()
	})
}

// TestFC80_WhateverTheWorkerAnswers to a warm-up, the user's turns are those without it,
// and at most one warm-up of a conversation is under way. The package has no logger, so no
// log line can come of it.
func TestFC80_WhateverTheWorkerAnswers(t *testing.T) {
	turns := func(t *testing.T, mode Mode, answer func(context.Context) (Answer, error)) (seen []outcome) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: mode}})
			g.quiet = true
			underWay, most := 0, 0
			g.answer = func(ctx context.Context) (Answer, error) {
				g.mu.Lock()
				underWay++
				most = max(most, underWay)
				g.mu.Unlock()
				defer func() {
					g.mu.Lock()
					underWay--
					g.mu.Unlock()
				}()
				return answer(ctx)
			}
			c := &chat{rig: g, name: "a"}
			for i := range 5 {
				seen = append(seen, c.turn(say{User: someText(fmt.Sprint("u", i), 400), Reasoning: someText("t", 30), Reply: someText(fmt.Sprint("r", i), 800), Output: 20}))
				time.Sleep(40 * time.Second)
			}
			g.close()
			g.mu.Lock()
			defer g.mu.Unlock()
			if most > 1 || mode == ModeOn && most == 0 {
				t.Errorf("%d warm-ups of one conversation at a time", most)
			}
		})
		return seen
	}
	want := turns(t, ModeOff, nil)
	for what, answer := range map[string]func(context.Context) (Answer, error){
		"context full": func(context.Context) (Answer, error) { return Answer{Status: 400}, nil },
		"busy":         func(context.Context) (Answer, error) { return Answer{Status: 429, RetryAfter: time.Second}, nil },
		"dead":         func(context.Context) (Answer, error) { return Answer{}, errRefused },
		"tool calls":   func(context.Context) (Answer, error) { return Answer{Status: 200, Usage: openai.NoUsage}, nil },
		"redirect":     func(context.Context) (Answer, error) { return Answer{Status: 302}, nil },
		"hang": func(ctx context.Context) (Answer, error) {
			select {
			case <-ctx.Done():
				return Answer{}, ctx.Err()
			case <-time.After(30 * time.Second):
				return Answer{Status: 200, Usage: openai.NoUsage}, nil
			}
		},
	} {
		for i, got := range turns(t, ModeOn, answer) {
			if got.TTFT != want[i].TTFT || got.Cached != want[i].Cached || got.Worker != want[i].Worker {
				t.Errorf("%s: turn %d is %+v, without warm-ups %+v", what, i, got, want[i])
			}
		}
	}
}

// TestFC78_UserCountersAreThoseWithoutWarmUps: ten turns are ten turns, with warm-ups or
// without.
func TestFC78_UserCountersAreThoseWithoutWarmUps(t *testing.T) {
	count := func(mode Mode) (all string, sent int) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: mode}})
			c := &chat{rig: g, name: "a"}
			for i := range 10 {
				c.turn(say{User: someText(fmt.Sprint("u", i), 400), Reasoning: someText("t", 30), Reply: someText(fmt.Sprint("r", i), 800), Output: 20})
				time.Sleep(20 * time.Second)
			}
			families, err := g.routing.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				switch f.GetName() {
				case "warmroute_router_decisions_total", "warmroute_router_prompt_tokens_total", "warmroute_router_refusals_total",
					"warmroute_router_reported_prompt_tokens_total":
					for _, m := range f.Metric {
						all += fmt.Sprint(f.GetName(), m.Label, m.GetCounter().GetValue(), "\n")
					}
				case "warmroute_router_actual_ttft_seconds":
					all += fmt.Sprint(f.GetName(), f.Metric[0].GetHistogram().GetSampleCount(), "\n")
				}
			}
			sent = len(g.sent)
			g.close()
		})
		return all, sent
	}
	want, none := count(ModeOff)
	got, sent := count(ModeOn)
	if got != want || want == "" {
		t.Errorf("with warm-ups:\n%s\nwithout:\n%s", got, want)
	}
	if none != 0 || sent < 9 {
		t.Errorf("%d and %d warm-ups were sent", none, sent)
	}
}

// BenchmarkArrived is what a hinted request of 200 messages, 300 KB in all, pays.
func BenchmarkArrived(b *testing.B) {
	message := `{"role":"user","content":"` + strings.Repeat("lorem ipsum ", 125) + `"}`
	body := []byte(`{"model":"m","messages":[` + strings.Repeat(message+",", 199) + message + `]}`)
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
		b.Fatal(err)
	}
	p := still(b, Config{})
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		p.Arrived(Arrival{Request: &v, Body: body}).Finish(End{})
	}
}
