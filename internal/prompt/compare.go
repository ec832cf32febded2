package prompt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
)

// checkTimeout bounds one call of the engine in a comparison.
const checkTimeout = 5 * time.Second

// class is what requests have in common for which tokens are right or wrong.
type class uint8

const (
	completions class = iota
	chats             // without tools
	toolChats
	classes
)

func classOf(req *openai.Request) class {
	switch {
	case req.Kind == openai.Completions:
		return completions
	case req.Tools:
		return toolChats
	}
	return chats
}

func (c class) kind() openai.Kind {
	if c == completions {
		return openai.Completions
	}
	return openai.Chat
}

// usable is a model and what is known of its tokens. It does not change.
type usable struct {
	model    *Model // nil where there is none
	style    Style
	verdicts []verdict       // by check; nil: nothing was asked yet
	off      [classes]string // why it makes no tokens of these requests; "" where it does
	why      string          // for people; "" where all is well
	note     string          // for people too, where all is well with the tokens
	degraded bool            // somebody should look at it

	compared time.Time // when every check was answered; zero if the last time not all were
	hung     bool      // the engine did not answer in time
}

// verdict is what the last answer to a check said.
type verdict struct {
	answer     answer
	difference string
}

type answer uint8

const (
	unasked answer = iota
	refused        // neither the engine nor this process takes the request
	equal
	different
)

// check is one request whose tokens are compared.
type check struct {
	name  string
	class class
	body  string // behind {"model":…,
}

// checks cover what templates and tokenizers differ in. They hold no user's text.
var checks = []check{
	{"a completion", completions, `"prompt":"` + checkText + `"}`},
	{"one message", chats, `"messages":[{"role":"user","content":"Hello, world! It's 2024.` + checkText + `"}]}`},
	{"a system message", chats, `"messages":[{"role":"system","content":"You are terse.\n"},{"role":"user","content":" Why?  "}]}`},
	{"a conversation", chats, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two\n\n"},{"role":"user","content":[{"type":"text","text":"three"},{"type":"text","text":"four"}]},{"role":"assistant","content":"five"},{"role":"user","content":"six"}]}`},
	{"reasoning in history", chats, `"messages":[{"role":"user","content":"one"},{"role":"assistant","reasoning":"hm","reasoning_content":"hm","content":"two"},{"role":"user","content":"three"}]}`},
	{"a reply as the last message", chats, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"}]}`},
	{"tools", toolChats, `"messages":[{"role":"user","content":"weather?"}],"tools":[` + checkTool + `]}`},
	{"a tool call", toolChats, `"messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Zürich\", \"days\": 3}"}}]},{"role":"tool","tool_call_id":"abcdefghi","content":"{\"temp\": 1.5}"}],"tools":[` + checkTool + `]}`},
}

const checkText = `The quick brown fox, 12345 times:\n\n\tfunc main() {}  // ünïcödé 你好 🙂`

// vllmChecks and sglangChecks are what only one of the engines can be asked: a reply that
// is continued, which SGLang takes without add_generation_prompt and vLLM with it, and what
// SGLang makes of messages and tools in its own way.
var (
	vllmChecks = []check{
		{"a continued reply", chats, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":" two and "}],"continue_final_message":true,"add_generation_prompt":false}`},
		{"a tool call without content", toolChats, `"messages":[{"role":"user","content":"time?"},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"get_time","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefghi","content":"noon"}],"tools":[` + checkOtherTool + `]}`},
	}
	sglangChecks = []check{
		{"a continued reply", chats, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":" two and "}],"continue_final_message":true}`},
		{"an empty list of tools", chats, `"messages":[{"role":"user","content":"one"}],"tools":[]}`},
		{"a named tool", toolChats, `"messages":[{"role":"user","content":"time?"}],"tools":[` + checkTool + `,` + checkOtherTool + `],"tool_choice":{"type":"function","function":{"name":"get_time"}}}`},
		{"no tool to choose", toolChats, `"messages":[{"role":"user","content":"time?"}],"tools":[` + checkTool + `],"tool_choice":"none"}`},
		{"a tool's answer in parts", toolChats, `"messages":[{"role":"user","content":"time?"},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"get_time","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefghi","content":[{"type":"text","text":"noon"},{"type":"text","text":"sharp"}]}],"tools":[` + checkOtherTool + `]}`},
	}
)

// checksOf returns the checks for engines of a style.
func checksOf(style Style) []check {
	if style.sglang() {
		return slices.Concat(checks, sglangChecks)
	}
	return slices.Concat(checks, vllmChecks)
}

const checkOtherTool = `{"type":"function","function":{"parameters":{"type":"object","properties":{}},"name":"get_time"}}`

const checkTool = `{"type":"function","function":{"name":"get_weather","description":"Current weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","default":1}},"required":["city"]}}}`

// compare tokenises the checks here and on the engine. A check that the engine does not
// answer keeps the verdict of old, which may be nil.
func (m *Models) compare(ctx context.Context, name string, model *Model, style Style, old []verdict, engine Source) *usable {
	checks := checksOf(style)
	u := &usable{model: model, style: style, verdicts: make([]verdict, len(checks))}
	copy(u.verdicts, old)
	answered := true
	for i, c := range checks {
		body := append(openai.AppendString([]byte(`{"model":`), name), ',')
		body = append(body, c.body...)
		ours, err := model.Tokenize(c.class.kind(), body, style)
		theirs, engineErr := u.ask(ctx, engine, name, c.class.kind(), body)
		v := &u.verdicts[i]
		if engineErr != nil {
			if err != nil && v.answer == unasked {
				v.answer = refused // which takes back no difference
			} else if err == nil {
				m.metrics.checks.WithLabelValues("unasked").Inc()
				answered = false
			}
			continue
		}
		if err != nil {
			*v = verdict{different, err.Error()}
		} else if d := differ(model, ours, theirs.IDs); d != "" {
			*v = verdict{different, d}
		} else {
			*v = verdict{answer: equal}
		}
		m.metrics.checks.WithLabelValues(map[answer]string{equal: "equal", different: "different"}[v.answer]).Inc()
	}
	if answered {
		u.compared = time.Now()
	}
	u.judge()
	return u
}

// ask asks the engine, unless it was too slow before: the rest of a comparison does not
// wait for it.
func (u *usable) ask(ctx context.Context, engine Source, name string, kind openai.Kind, body []byte) (Tokens, error) {
	if u.hung {
		return Tokens{}, context.DeadlineExceeded
	}
	call, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	t, err := engine.Tokenize(call, name, kind, body)
	u.hung = err != nil && call.Err() != nil
	return t, err
}

// judge draws the conclusions from the verdicts. A chat with tools holds what one without
// holds, so what is wrong with the latter is wrong with both.
func (u *usable) judge() {
	checks := checksOf(u.style)
	var count [different + 1]int
	for i, v := range u.verdicts {
		count[v.answer]++
		if v.answer != different {
			continue
		}
		why := checks[i].name + ": " + v.difference
		c := checks[i].class
		u.off[c] = cmp.Or(u.off[c], why)
		if c == chats {
			u.off[toolChats] = cmp.Or(u.off[toolChats], why)
		}
		u.why, u.degraded = cmp.Or(u.why, why), true
	}
	switch {
	case u.degraded || count[unasked] == 0: // a difference is one, whatever was not asked
	case count[equal] == 0:
		u.why = "the engine cannot be asked for tokens: not compared"
	default:
		u.why = fmt.Sprintf("the engine could not be asked for %d of %d requests: not compared in full", count[unasked], len(checks))
	}
}

// proven is the number of classes whose tokens are known to be the engine's.
func (u *usable) proven() (n int) {
	checks := checksOf(u.style)
	var same, open [classes]bool
	for i, v := range u.verdicts {
		c := checks[i].class
		same[c] = same[c] || v.answer == equal
		open[c] = open[c] || v.answer == unasked
	}
	for c := range classes {
		if same[c] && !open[c] && u.off[c] == "" {
			n++
		}
	}
	return n
}

// better tells whether the tokens of u are worth more than those of v.
func (u *usable) better(v *usable) bool {
	if u.model == nil || v.model == nil {
		return u.model != nil
	}
	return u.proven() > v.proven()
}

// differ tells the first difference of two token sequences; "" where there is none.
func differ(m *Model, ours, theirs []uint32) string {
	if slices.Equal(ours, theirs) {
		return ""
	}
	at := 0
	for at < len(ours) && at < len(theirs) && ours[at] == theirs[at] {
		at++
	}
	token := func(ids []uint32) string {
		if at >= len(ids) {
			return "none"
		}
		return fmt.Sprintf("%d %q", ids[at], m.tok.Decode(nil, ids[at:at+1]))
	}
	return strings.ToValidUTF8(fmt.Sprintf("token %d of %d is %s here and %s of %d on the engine", at, len(ours), token(ours), token(theirs), len(theirs)), "�")
}
