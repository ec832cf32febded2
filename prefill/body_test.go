package prefill

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/script"
)

// observed feeds a reply the chunks of a stream, or a whole response.
func observed(chunks ...string) *reply {
	m := &reply{}
	for _, c := range chunks {
		m.observe(openai.Event{Data: []byte(c)})
	}
	return m
}

// warm builds the warm request for a body and a reply.
func warm(t testing.TB, body string, m *reply) (string, error) {
	t.Helper()
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, []byte(body), &v); err != nil {
		t.Fatal(err)
	}
	reason, _ := m.check()
	if reason != "" {
		return "", fmt.Errorf("%s", reason)
	}
	e, _ := echoOf([]byte(body), &v, m, habit{}, habit{})
	b, err := warmBody(nil, []byte(body), &v, m, &e, stubs[0])
	if err == nil {
		if err := openai.ParseRequest(openai.Chat, b, &v); err != nil {
			t.Errorf("the warm request does not parse: %v\n%s", err, b)
		}
	}
	return string(b), err
}

// TestWarm_Scripts shows the warm request for replies of every shape: first the
// request, then the chunks of its answer.
func TestWarm_Scripts(t *testing.T) {
	script.RunDir(t, "testdata/warm", func(t *testing.T) func(*script.Cmd) string {
		return func(c *script.Cmd) string {
			lines := strings.Split(c.Input, "\n")
			m := &reply{}
			for _, l := range lines[1:] {
				m.observe(openai.Event{Data: []byte(l), Error: strings.HasPrefix(l, `{"error"`)})
			}
			b, err := warm(t, lines[0], m)
			if err != nil {
				return "skipped: " + err.Error()
			}
			return fieldLines(t, b)
		}
	})
}

// fieldLines prints one field a line, in the order of the body, and one message a line.
func fieldLines(t testing.TB, body string) string {
	var out strings.Builder
	var r openai.Reader
	r.Reset([]byte(body), openai.Span{End: len(body)})
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		value := r.Skip()
		raw := string(value.Of([]byte(body)))
		if name != "messages" {
			fmt.Fprintf(&out, "%s  %s\n", name, raw)
			continue
		}
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(raw), &list); err != nil {
			t.Fatal(err)
		}
		for i, m := range list {
			fmt.Fprintf(&out, "messages[%d]  %s\n", i, m)
		}
	}
	if r.Err() != nil {
		t.Errorf("not JSON: %v", r.Err())
	}
	return out.String()
}

// TestWarmBody_FieldTable sends every field that this package knows, and some that it
// does not: what is dropped is gone, what is kept is byte for byte the same.
func TestWarmBody_FieldTable(t *testing.T) {
	kept := map[string]string{
		"model":                  `"m"`,
		"tools":                  `[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}}]`,
		"chat_template":          `"{{ x }}"`,
		"chat_template_kwargs":   `{"enable_thinking": false}`,
		"reasoning_effort":       `"low"`,
		"documents":              `[{"title":"t"}]`,
		"cache_salt":             `"s"`,
		"lora_path":              `"a"`,
		"user":                   `"u"`,
		"prompt_cache_key":       `"k"`,
		"temperature":            `0.70`,
		"seed":                   `18446744073709551615`,
		"mm_processor_kwargs":    `{"x":1}`,
		"truncate_prompt_tokens": `4096`,
		"parallel_tool_calls":    `false`,
		"add_special_tokens":     `true`,
		"id_slot":                `3`,
		"vllm_xargs":             `{"a":{"b":[1, 2]}}`,
		"some_field_of_2027":     `{"n":1,"stop":["x"]}`,
	}
	var members []string
	for name, value := range kept {
		members = append(members, fmt.Sprintf("%q: %s", name, value))
	}
	for name, c := range fields {
		switch c {
		case drop, limit:
			members = append(members, fmt.Sprintf("%q:[1, {}]", name))
		case choose:
			members = append(members, fmt.Sprintf(`%q : {"type":"function","function":{"name":"f"}}`, name))
		}
	}
	members = append(members, `"messages": [ {"role":"user","content":"hi"} ]`)
	sort.Strings(members)
	for shift := range members { // every member first and last
		order := slices.Concat(members[shift:], members[:shift])
		body := "{\n " + strings.Join(order, " ,\n ") + "\n}"
		body = strings.ReplaceAll(body, `"n":[1, {}]`, `"n":1`)
		for _, n := range []string{"max_tokens", "max_completion_tokens"} {
			body = strings.ReplaceAll(body, `"`+n+`":[1, {}]`, `"`+n+`":900`)
		}
		for n, v := range map[string]string{"stream": "true", "stream_options": "{}", "priority": "2"} {
			body = strings.ReplaceAll(body, `"`+n+`":[1, {}]`, `"`+n+`":`+v)
		}
		got, err := warm(t, body, observed(`{"choices":[{"index":0,"delta":{"content":"ho"},"finish_reason":"stop"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		var fieldsOf map[string]json.RawMessage
		if err := json.Unmarshal([]byte(got), &fieldsOf); err != nil {
			t.Fatalf("%v\n%s", err, got)
		}
		for name, value := range kept {
			if string(fieldsOf[name]) != value {
				t.Errorf("%s is %s, want %s", name, fieldsOf[name], value)
			}
			delete(fieldsOf, name)
		}
		want := map[string]string{
			"max_completion_tokens": "1", "tool_choice": `"auto"`, "function_call": `"auto"`,
			"messages": `[ {"role":"user","content":"hi"} ,{"role":"assistant","content":"ho"},{"role":"user","content":"warm-up"}]`,
		}
		for name, value := range want {
			if string(fieldsOf[name]) != value {
				t.Errorf("%s is %s, want %s", name, fieldsOf[name], value)
			}
			delete(fieldsOf, name)
		}
		for name := range fieldsOf {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestWarmBody_Limits: exactly one of the two limits is there, as 1, whatever the client
// set.
func TestWarmBody_Limits(t *testing.T) {
	f := func(set, want string) {
		t.Helper()
		got, err := warm(t, `{"model":"m"`+set+`,"messages":[{"role":"user","content":"x"}]}`,
			observed(`{"choices":[{"index":0,"delta":{"content":"y"},"finish_reason":"stop"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		rest := strings.Replace(got, `,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"},{"role":"user","content":"warm-up"}]`, "…", 1)
		if rest != want {
			t.Errorf("%s: got %s, want %s", set, rest, want)
		}
	}
	f(``, `{"model":"m"…,"max_tokens":1}`)
	f(`,"max_tokens":5`, `{"model":"m","max_tokens":1…}`)
	f(`,"max_tokens":null`, `{"model":"m","max_tokens":1…}`)
	f(`,"max_completion_tokens": 5`, `{"model":"m","max_completion_tokens": 1…}`)
	f(`,"max_completion_tokens":null,"max_tokens":7`, `{"model":"m","max_tokens":1…}`)
	f(`,"max_tokens":7,"max_completion_tokens":9`, `{"model":"m","max_completion_tokens":1…}`)
	f(`,"max_tokens":7,"max_completion_tokens":null`, `{"model":"m","max_tokens":1…}`)
	f(`,"tool_choice":"none"`, `{"model":"m","tool_choice":"none"…,"max_tokens":1}`)
	f(`,"tool_choice":"required"`, `{"model":"m","tool_choice":"auto"…,"max_tokens":1}`)
	f(`,"tool_choice":"auto","stream":true,"stream_options":{"include_usage":true}`, `{"model":"m","tool_choice":"auto"…,"max_tokens":1}`)
}

// TestWarmBody_StartsWithAByteOrderMark as ParseRequest allows.
func TestWarmBody_StartsWithAByteOrderMark(t *testing.T) {
	got, err := warm(t, "\xef\xbb\xbf"+`{"model":"m","messages":[{"role":"user","content":"x"}]}`,
		observed(`{"choices":[{"index":0,"delta":{"content":"y"},"finish_reason":"stop"}]}`))
	if err != nil || !strings.HasPrefix(got, `{"model":"m"`) {
		t.Errorf("%v: %s", err, got)
	}
}

// TestWarmBody_DoesNotContinueAMessage that the client's history will not end there.
func TestWarmBody_DoesNotContinueAMessage(t *testing.T) {
	for _, field := range []string{`"continue_final_message":true`, `"add_generation_prompt":false`} {
		_, err := warm(t, `{"model":"m",`+field+`,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]}`,
			observed(`{"choices":[{"index":0,"delta":{"content":"z"},"finish_reason":"stop"}]}`))
		if err == nil {
			t.Errorf("%s: a warm request was built", field)
		}
	}
}

func TestWarmHeader(t *testing.T) {
	client := "X-Session-Id: s\r\nIdempotency-Key: once\r\nx-request-id: r1\r\nTraceparent: 00-1\r\nX-Speculative-Prefill: 1\r\n" +
		"X-Data-Parallel-Rank: 7\r\nAccept-Encoding: identity\r\n"
	f := func(rank, want string) {
		t.Helper()
		if got := string(warmHeader(nil, []byte(client), "warm-1", rank)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	f("", "X-Session-Id: s\r\nAccept-Encoding: identity\r\nX-Request-Id: warm-1\r\nX-Warmroute-Prefill: 1\r\n")
	f("2", "X-Session-Id: s\r\nAccept-Encoding: identity\r\nX-Request-Id: warm-1\r\nX-Warmroute-Prefill: 1\r\nX-Data-Parallel-Rank: 2\r\n")
}
