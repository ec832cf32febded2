package prefill

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
)

// chunksOf are the events of a reply.
func chunksOf(reasoning, content, call string) (chunks []string) {
	add := func(format string, args ...any) { chunks = append(chunks, fmt.Sprintf(format, args...)) }
	if reasoning != "" {
		add(`{"choices":[{"index":0,"delta":{"reasoning":%s}}]}`, quote(reasoning))
	}
	if content != "" {
		add(`{"choices":[{"index":0,"delta":{"content":%s}}]}`, quote(content))
	}
	finish := "stop"
	if call != "" {
		finish = "tool_calls"
		add(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":%s}}]}}]}`, quote(call))
	}
	add(`{"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, finish)
	return chunks
}

// TestEcho_IsWhatWasSeen: a reply is written as this conversation's last one was, else as its
// history is, else as this tenant's clients do; what nobody has seen is tried both ways.
func TestEcho_IsWhatWasSeen(t *testing.T) {
	thinks := habit{echo: echo{reasoning: [2]bool{true, false}}, fields: true}
	drops := habit{fields: true}
	inline := habit{echo: echo{inline: true}, marks: true}
	empty := habit{echo: echo{content: `""`}, calls: true}
	absent := habit{calls: true}
	f := func(what, messages string, m *reply, own, others habit, want, otherwise string) {
		t.Helper()
		body := []byte(`{"model":"m","messages":[` + messages + `]}`)
		var v openai.Request
		if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
			t.Fatal(err)
		}
		e, other := echoOf(body, &v, m, own, others)
		write := func(e echo) string {
			b, err := e.assistant(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimPrefix(string(e.stub(b, m, "S")), `,{"role":"assistant"`)
		}
		if got := write(e); got != want {
			t.Errorf("%s: %s\nwant %s", what, got, want)
		}
		if otherwise == "" {
			otherwise = want
		}
		if got := write(other); got != otherwise {
			t.Errorf("%s, otherwise: %s\nwant %s", what, got, otherwise)
		}
	}
	const (
		user     = `{"role":"user","content":"q"}`
		bare     = user + `,{"role":"assistant","content":"a"},` + user
		thoughts = user + `,{"role":"assistant","content":"a","reasoning_content":"hm"},` + user
		said     = `,"content":"yes"},{"role":"user","content":"S"}`
		thought  = `,"content":"yes","reasoning_content":"why"},{"role":"user","content":"S"}`
		called   = `"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1"`
		plain    = `,"content":"S"}`
		named    = `,"name":"f","content":"S"}`
	)
	reasons := observed(chunksOf("why", "yes", "")...)
	calls := observed(chunksOf("", "", "{}")...)
	f("a history without", bare, reasons, habit{}, habit{}, said, "")
	f("a history with", thoughts, reasons, habit{}, habit{}, thought, "")
	f("the conversation's own last reply wins", bare, reasons, thinks, habit{}, thought, "")
	f("and the other way", thoughts, reasons, drops, thinks, said, "")
	f("a first turn goes by others", user, reasons, habit{}, thinks, thought, "")
	f("who drop it", user, reasons, habit{}, drops, said, "")
	f("a history wins over others", bare, reasons, habit{}, thinks, said, "")
	f("nobody knows", user, reasons, habit{}, habit{}, said, `,"content":"yes","reasoning":"why"},{"role":"user","content":"S"}`)
	f("nothing to know", user, observed(chunksOf("", "yes", "")...), habit{}, habit{}, said, "")

	marks := observed(chunksOf("", "<think>why</think>yes", "")...)
	f("marks go", bare, marks, habit{}, habit{}, said, "")
	f("marks stay", bare, marks, inline, habit{}, `,"content":"<think>why</think>yes"},{"role":"user","content":"S"}`, "")
	f("marks: nobody knows", user, marks, habit{}, habit{}, said, `,"content":"<think>why</think>yes"},{"role":"user","content":"S"}`)

	f("calls: nobody knows", bare, calls, habit{}, habit{}, `,"content":null,`+called+plain, `,"content":"",`+called+named)
	f("calls: an empty text", bare, calls, empty, habit{}, `,"content":"",`+called+plain, `,"content":"",`+called+named)
	f("calls: no text at all", bare, calls, absent, habit{tools: true}, `,`+called+plain, "")
	f("calls: named answers", bare, calls, absent, habit{echo: echo{toolNames: true}, tools: true}, `,`+called+named, "")
}

// TestSeen_ReadsWhatTheReplyShows: only what a reply had says something of its echo.
func TestSeen_ReadsWhatTheReplyShows(t *testing.T) {
	f := func(messages string, s said, want habit) {
		t.Helper()
		body := []byte(`{"model":"m","messages":[` + messages + `]}`)
		var v openai.Request
		if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
			t.Fatal(err)
		}
		if got := seen(body, &v, 1, s); got != want {
			t.Errorf("%s: %+v, want %+v", messages, got, want)
		}
	}
	const user = `{"role":"user","content":"q"}`
	f(user+`,{"role":"assistant","content":"a","reasoning":"b"},`+user, said{field: true}, habit{echo: echo{reasoning: [2]bool{false, true}}, fields: true})
	f(user+`,{"role":"assistant","content":"a"},`+user, said{field: true}, habit{fields: true})
	f(user+`,{"role":"assistant","content":"a"},`+user, said{}, habit{})
	f(user+`,{"role":"assistant","content":"<think>x</think>a"},`+user, said{marks: true}, habit{echo: echo{inline: true}, marks: true})
	f(user+`,{"role":"assistant","tool_calls":[{"id":"1"}]},{"role":"tool","name":"f","content":"r"}`, said{onlyCalls: true},
		habit{echo: echo{toolNames: true}, calls: true, tools: true})
	f(user+`,`+user+`,`+user, said{field: true}, habit{})
}

// TestHabits_AreLearnedAndBounded: what one conversation shows serves the next one's first
// turn of the same tenant and model, and of no other.
func TestHabits_AreLearnedAndBounded(t *testing.T) {
	h := habits{}
	thinks := habit{echo: echo{reasoning: [2]bool{true, false}}, fields: true}
	h.note(scope{"k", "m", TriggerTurn}, thinks)
	h.note(scope{"k", "m", TriggerTools}, habit{tools: true})
	if got := h.of(scope{"k", "m", TriggerTools}); !got.fields || !got.tools || !got.reasoning[0] {
		t.Errorf("%+v", got)
	}
	if got := h.of(scope{"other", "m", TriggerTurn}); got != (habit{}) {
		t.Errorf("another tenant's: %+v", got)
	}
	forgot := 0
	for i := range 2 * maxHabits {
		if h.note(scope{fmt.Sprint(i), "m", TriggerTurn}, thinks) {
			forgot++
		}
	}
	if len(h) != maxHabits || forgot != maxHabits+1 {
		t.Errorf("%d habits, %d forgotten", len(h), forgot)
	}
}

// TestStubs_AreLikeNoMessage: some templates compare messages by their text.
func TestStubs_AreLikeNoMessage(t *testing.T) {
	f := func(messages string, fresh bool) {
		t.Helper()
		body := []byte(`{"model":"m","messages":[` + messages + `]}`)
		var v openai.Request
		if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
			t.Fatal(err)
		}
		got := stubsFor(body, &v)
		if (got != stubs) != fresh || got[0][0] == got[1][0] || says(body, &v, got[0]) || says(body, &v, got[1]) {
			t.Errorf("%s: %q", messages, got)
		}
	}
	f(`{"role":"user","content":"hi"}`, false)
	f(`{"role":"user","content":"a warm-up"}`, false)
	f(`{"role":"user","content":"warm-up"}`, true)
	f(`{"role":"user","content":"warm\u002dup"}`, true)
	f(`{"role":"user","content":[{"type":"text","text":"Placeholder"}]}`, true)
}

// TestMatrix_UnknownClients: at the first turn of a tenant nobody knows what its clients do
// with reasoning. What is warmed is true whatever they do, and a later conversation's first
// turn is warmed as far as one that is known.
func TestMatrix_UnknownClients(t *testing.T) {
	for _, f := range templates(t) {
		for _, scenario := range []string{"thinking", "tool loop"} {
			for _, echoed := range []bool{false, true} {
				r := f.play(t, cell{scenario: scenario, echoed: echoed, fresh: true})
				if r.refused == "" && r.sent && !r.true {
					t.Errorf("%s, %s, echoed %t: not a prefix", f.name, scenario, echoed)
				}
			}
		}
	}
}

// TestHabits_ServeTheNextConversation plays two conversations of one tenant, whose client
// writes reasoning back in a tool loop of a template that keeps it there.
func TestHabits_ServeTheNextConversation(t *testing.T) {
	var f *family
	for _, f = range templates(t) {
		if f.name == "empty" {
			break
		}
	}
	first := f.play(t, cell{scenario: "tool loop", echoed: true, fresh: true})
	again := f.play(t, cell{scenario: "tool loop", echoed: true, fresh: true, known: true})
	if first.cached >= first.warm || !again.sent || !again.true || again.cached < again.warm {
		t.Errorf("first %+v\nagain %+v", first, again)
	}
}

// TestTurn_KnowsWhatItsClientDid: the last reply's echo goes with the conversation.
func TestTurn_KnowsWhatItsClientDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := still(t, Config{})
		one := arrive(t, p, hello, "")
		for _, c := range chunksOf("why", "yes", "") {
			one.Observe(openai.Event{Data: []byte(c)})
		}
		one.Finish(End{OK: true})
		time.Sleep(time.Second)
		two := arrive(t, p, `{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes","reasoning":"why"},{"role":"user","content":"go on"}]}`, "")
		if want := (habit{echo: echo{reasoning: [2]bool{false, true}}, fields: true}); two.own != want || p.mu.habits.of(scope{"", "m", ""}) != want {
			t.Errorf("%+v", two.own)
		}
		two.Finish(End{})
	})
}
