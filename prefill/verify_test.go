package prefill

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// TestVerify_SaysWhere: the first token that differs, and in which part of the prompt.
func TestVerify_SaysWhere(t *testing.T) {
	p := still(t, Config{})
	warm := make([]uint32, 1000)
	for i := range warm {
		warm[i] = uint32(i * 7 % 3000)
	}
	w := &plan{prompt: &kv.Prompt{Tokens: warm, TokenCount: len(warm)}, prefix: 960, exact: true, known: true, shared: 600}
	body := `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"a":1}]}`
	c := &conversation{expect: p.expect(w, []byte(body), &echo{content: "null"}, observed(chunksOf("why", "yes", "")...))}
	c.warm = warmth{blockSize: 16, blocks: 60, tail: w.prompt.Chain(16)[59]}

	f := func(what string, at int, length int, came string, want truth) {
		t.Helper()
		next := append(slices.Clone(warm[:960]), make([]uint32, 100)...)
		if at >= 0 {
			next[at]++
		}
		got := p.compare(c, &kv.Prompt{Tokens: next[:length], TokenCount: length}, came)
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	yes := truth{known: true, true: true, at: -1}
	no := func(where string, at int) truth { return truth{known: true, where: where, at: at} }
	f("true", -1, 1060, "", yes)
	f("true, whatever the message looked like", -1, 1060, whereReply, yes)
	f("before the reply", 599, 1060, "", no(whereHistory, 599))
	f("before the reply, which differs too", 10, 1060, whereReply, no(whereHistory, 10))
	f("the tools", 10, 1060, whereSystem, no(whereSystem, 10))
	f("the reply's text", 700, 1060, whereReply, no(whereReply, 700))
	f("its reasoning", 601, 1060, whereReasoning, no(whereReasoning, 601))
	f("a call", 601, 1060, whereTool, no(whereTool, 601))
	f("in the reply, for no known reason", 700, 1060, "", no(whereReply, 700))
	f("at the cut", 959, 1060, "", no(whereCut, 959))
	f("shorter than what was warmed", -1, 900, "", no(whereReply, 900))

	c.expect.marks = nil
	f("no room for tokens", 700, 1060, whereReply, no(whereBlocks, -1))
	f("no room for tokens, true", -1, 1060, "", yes)
	if got := p.compare(c, &kv.Prompt{Text: make([]kv.SequenceHash, 9)}, ""); got.known {
		t.Errorf("text against tokens: %+v", got)
	}
}

// TestDiffers_NamesThePart: what the next request has other than was assumed.
func TestDiffers_NamesThePart(t *testing.T) {
	p := still(t, Config{})
	f := func(want, call, tools, next string) {
		t.Helper()
		m := observed(chunksOf("why", "yes", call)...)
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"a":1}]}`
		x := p.expect(&plan{}, []byte(body), &echo{content: "null"}, m)
		came := []byte(`{"model":"m","messages":[{"role":"user","content":"hi"},` + next + `],"tools":` + tools + `}`)
		var v openai.Request
		if err := openai.ParseRequest(openai.Chat, came, &v); err != nil {
			t.Fatal(err)
		}
		if got := x.differs(came, &v, p.seed, 1); got != want {
			t.Errorf("%s: %q, want %q", next, got, want)
		}
	}
	const user = `,{"role":"user","content":"go on"}`
	const same = `[{"a":1}]`
	f("", "", same, `{"role":"assistant","content":"yes"}`+user)
	f("", "", same, `{ "content": "\u0079es", "role":"assistant", "refusal":null}`+user)
	f("", "", same, `{"role":"assistant","content":[{"type":"text","text":"y"},{"type":"text","text":"es"}]}`+user)
	f(whereSystem, "", `[{"a":2}]`, `{"role":"assistant","content":"yes"}`+user)
	f(whereReply, "", same, `{"role":"assistant","content":"no"}`+user)
	f(whereReasoning, "", same, `{"role":"assistant","content":"yes","reasoning":"why"}`+user)
	f(whereReasoning, "", same, `{"role":"assistant","content":"<think>why</think>yes"}`+user)
	f(whereTool, `{"q":1}`, same, `{"role":"assistant","content":"yes","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"q\": 1}"}}]},{"role":"tool","content":"r"}`)
	f("", `{"q":1}`, same, `{"role":"assistant","content":"yes","tool_calls":[{"type":"function","id":"c1","index":0,"function":{"arguments":"{\"q\":1}","name":"f"}}]},{"role":"tool","content":"r"}`)
	f(whereNext, "", same, `{"role":"assistant","content":"yes"},{"role":"tool","content":"r"}`)
}

// TestVerify_CountsAndShowsNoText: a next turn whose tools changed is counted where it
// differs, and the debug page shows the place, not the text.
func TestVerify_CountsAndShowsNoText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: ModeOn}})
		defer g.close()
		var tomorrow atomic.Bool
		g.render = func(body []byte) []uint32 { // the template prints the date
			out := render(body)
			if tomorrow.Load() {
				out[5]++
			}
			return out
		}
		c := &chat{rig: g, name: "a"}
		count := func(result, where string) float64 {
			return testutil.ToFloat64(g.prefill.metrics.prefixes.WithLabelValues(result, where))
		}
		c.turn(say{User: someText("u", 400), Reasoning: someText("r", 300), Reply: someText("s", 800)})
		time.Sleep(20 * time.Second)
		c.turn(say{User: someText("v", 400), Reasoning: someText("r", 300), Reply: someText("t", 800)})
		if n := count("true", ""); n != 1 {
			t.Errorf("%g true prefixes", n)
		}
		time.Sleep(20 * time.Second)
		tomorrow.Store(true)
		c.turn(say{User: someText("w", 400), Reasoning: "r", Reply: "s"})
		if n := count("false", whereHistory); n != 1 {
			t.Errorf("%g false prefixes", n)
		}
		d := g.prefill.Debug()
		i := slices.IndexFunc(d.Recent, func(r Record) bool { return r.Outcome == "prefix_false" })
		if i < 0 || d.Recent[i].DiffersAt == nil || *d.Recent[i].DiffersAt != 5 || d.Recent[i].Reason != whereHistory || d.Recent[i].PrefixTokens == 0 {
			t.Fatalf("%+v", d.Recent)
		}
		if shown := fmt.Sprintf("%+v", d); strings.Contains(shown, someText("u", 400)[:16]) {
			t.Error("the page shows a prompt")
		}
	})
}

// TestExpectations_AreBounded: beyond the bound whole blocks are compared, and what leaves
// the table is given back.
func TestExpectations_AreBounded(t *testing.T) {
	var tab table
	tab.init()
	const each = maxMarks / 10
	var all []*conversation
	for i := range 12 {
		c := &conversation{key: uint64(i)}
		tab.add(c)
		tab.expect(c, &expectation{marks: make([]uint16, each/2)})
		if (c.expect.marks != nil) != (i < 10) {
			t.Errorf("conversation %d: %d marks", i, len(c.expect.marks))
		}
		all = append(all, c)
	}
	tab.expect(all[0], &expectation{marks: make([]uint16, each/2)})
	for _, c := range all {
		tab.remove(c)
	}
	tab.expect(all[0], &expectation{marks: make([]uint16, each/2)})
	if tab.marks != 0 {
		t.Errorf("%d bytes are still counted", tab.marks)
	}
}
