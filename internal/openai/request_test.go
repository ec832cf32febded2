package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func parse(t *testing.T, kind Kind, body string) *Request {
	t.Helper()
	v := new(Request)
	if err := ParseRequest(kind, []byte(body), v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

const hello = `"messages":[{"role":"user","content":"hi"}]`

func TestParseRequest_ReadsWhatRoutingNeeds(t *testing.T) {
	body := `{ "model" : "llama-\u0033", "messages":[
	{"role":"system","content":"be brief"},{"content":[{"type":"text","text":"what is this?"},{"image_url":{"url":"data:"},"type":"image_url"}],"role":"user"},
	{"role":"assistant","content":null,"tool_calls":[{"id":"c1"}]},{"role":"tool","content":"42","tool_call_id":"c1"}],
	"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true},"max_tokens":5,"max_completion_tokens":7,"n":2,
	"tools":[{"type":"function"}],"cache_salt":"s","prompt_cache_key":"k","user":"u","priority":-3,"temperature":0.5,
	"nvext":{"annotations":[],"agent_hints":{"osl":250,"speculative_prefill":true,"priority":1}},"vllm_xargs":{"deep":[{"er":1}]}}`
	v := parse(t, Chat, body)
	got := fmt.Sprintln(v.Model, v.Stream, v.IncludeUsage, v.MaxTokens, v.N, v.CacheSalt, v.PromptCacheKey, v.User, v.Priority,
		v.FirstTurn, v.Tools, v.Multimodal, v.FirstMedia, *v.HintSpeculative, v.OutputTokensHint, len(v.Messages))
	if want := "llama-3 true true 7 2 s k u -3 false true true 1 true 250 4\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var roles []string
	for _, m := range v.Messages {
		roles = append(roles, fmt.Sprintf("%s/%v/%v/%v", m.Role, m.Content.Present(), m.Other, m.Media))
	}
	if got, want := strings.Join(roles, " "), "system/true/false/false user/true/false/true assistant/false/true/false tool/true/true/false"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s := v.Messages[0].Content.Of([]byte(body)); string(s) != `"be brief"` {
		t.Errorf("content of message 0 is %s", s)
	}
}

func TestParseRequest_AbsentIsNotZero(t *testing.T) {
	v := new(Request)
	full := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"n":3,"cache_salt":"s","user":"u","prompt_cache_key":"k",` +
		`"priority":1,"tools":[{}],"nvext":{"agent_hints":{"osl":9,"speculative_prefill":false}},` + hello + `}`
	null := `{"model":"m","stream":null,"stream_options":null,"max_tokens":null,"max_completion_tokens":null,"n":null,"cache_salt":null,"user":null,` +
		`"prompt_cache_key":null,"priority":null,"tools":null,"nvext":null,` + hello + `}`
	for _, body := range []string{`{"model":"m",` + hello + `}`, null} {
		if err := ParseRequest(Chat, []byte(full), v); err != nil {
			t.Fatal(err)
		}
		if *v.HintSpeculative || v.CacheSalt != "s" {
			t.Fatalf("%+v", v)
		}
		if err := ParseRequest(Chat, []byte(body), v); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(v.Stream, v.IncludeUsage, v.MaxTokens, v.N, v.CacheSalt == "", v.User == "", v.PromptCacheKey == "", v.Priority, v.Tools,
			v.HintSpeculative == nil, v.OutputTokensHint, v.FirstTurn, v.Multimodal, v.FirstMedia, v.Template.Tools.Present())
		if want := "false false -1 1 true true true 0 false true 0 true false -1 false"; got != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, got, want)
		}
	}
}

func TestParseRequest_Prompts(t *testing.T) {
	f := func(prompt, text string, ids []uint32, count int) {
		t.Helper()
		body := `{"model":"m","prompt":` + prompt + `}`
		v := parse(t, Completions, body)
		if got := string(v.Prompt.Of([]byte(body))); got != text || fmt.Sprint(v.PromptTokens) != fmt.Sprint(ids) || v.PromptCount != count {
			t.Errorf("%s: text %s, ids %v, count %d", prompt, got, v.PromptTokens, v.PromptCount)
		}
	}
	f(`"hi"`, `"hi"`, nil, 1)
	f(`["a", "b"]`, `"a"`, nil, 2)
	f(`[1, 2,4294967295]`, ``, []uint32{1, 2, 4294967295}, 1)
	f(`[[5,6],[7]]`, ``, []uint32{5, 6}, 2)
	v := parse(t, Completions, `{"model":"m","prompt_embeds":"AAAA"}`)
	if !v.PromptEmbeds {
		t.Error("embeddings are not seen")
	}
}

func TestParseRequest_RefusesWithTheFieldAndTheFix(t *testing.T) {
	f := func(kind Kind, body, param, message string) {
		t.Helper()
		err := ParseRequest(kind, []byte(body), new(Request))
		var re *RequestError
		if !errors.As(err, &re) {
			t.Errorf("%s: %v", body, err)
			return
		}
		if re.Param != param || re.Message != message {
			t.Errorf("%s:\ngot  %s: %s\nwant %s: %s", body, re.Param, re.Message, param, message)
		}
	}
	f(Chat, ``, "", `request body is not valid JSON: expected a value, but the text ends at byte 0`)
	f(Chat, `[]`, "", `request body: expected a JSON object`)
	f(Chat, `{"model":"m",`+hello, "", `request body is not valid JSON: expected ',' or '}', but the text ends at byte 56`)
	f(Chat, `{"model":"m",`+hello+`} x`, "", `request body is not valid JSON: expected nothing behind the body's object at byte 58, got "x"`)
	f(Chat, `{"model" "m"}`, "", `request body is not valid JSON: expected ':' at byte 9, got "\""`)
	f(Chat, `{"x":`+strings.Repeat("[", 300)+`}`, "", `request body is not valid JSON: nested deeper than 256 levels at byte 260`)
	f(Chat, `{`+hello+`}`, "model", `model: missing; send the name of a model that /v1/models lists`)
	f(Chat, `{"model":"",`+hello+`}`, "model", `model: missing; send the name of a model that /v1/models lists`)
	f(Chat, `{"model":7,`+hello+`}`, "model", `model: expected a string`)
	f(Chat, `{"model":"m"}`, "messages", `messages: missing; send an array with at least one message`)
	f(Chat, `{"model":"m","messages":[]}`, "messages", `messages: expected at least one message`)
	f(Chat, `{"model":"m","messages":null}`, "messages", `messages: expected an array`)
	f(Chat, `{"model":"m","messages":"hi"}`, "messages", `messages: expected an array`)
	f(Chat, `{"model":"m","messages":["hi"]}`, "messages", `messages[0]: expected an object`)
	f(Chat, `{"model":"m","messages":[{"content":"hi"}]}`, "messages", `messages[0].role: missing; send system, user, assistant or tool`)
	f(Chat, `{"model":"m","messages":[{"role":1}]}`, "messages", `messages[0].role: expected a string`)
	f(Chat, `{"model":"m","messages":[{"role":"user","content":7}]}`, "messages", `messages[0].content: expected a string or an array of parts`)
	f(Chat, `{"model":"m","messages":[{"role":"user","content":[7]}]}`, "messages", `messages[0].content: expected each part to be an object or a string`)
	f(Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":1}]}]}`, "messages", `messages[0].content: expected a part's type to be a string`)
	f(Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":{}}]}]}`, "messages", `messages[0].content: expected a part's text to be a string`)
	f(Chat, `{"model":"m","stream":"yes",`+hello+`}`, "stream", `stream: expected true or false`)
	f(Chat, `{"model":"m","stream_options":[],`+hello+`}`, "stream_options", `stream_options: expected an object`)
	f(Chat, `{"model":"m","stream_options":{"include_usage":1},`+hello+`}`, "stream_options.include_usage", `stream_options.include_usage: expected true or false`)
	f(Chat, `{"model":"m","max_tokens":"5",`+hello+`}`, "max_tokens", `max_tokens: expected a whole number`)
	f(Chat, `{"model":"m","n":1.5,`+hello+`}`, "n", `n: expected a whole number`)
	f(Chat, `{"model":"m","tools":{},`+hello+`}`, "tools", `tools: expected an array`)
	f(Chat, `{"model":"m","nvext":1,`+hello+`}`, "nvext", `nvext: expected an object`)
	f(Chat, `{"model":"m","nvext":{"agent_hints":1},`+hello+`}`, "nvext", `nvext.agent_hints: expected an object`)
	f(Chat, `{"model":"m","nvext":{"agent_hints":{"speculative_prefill":1}},`+hello+`}`, "nvext", `nvext.agent_hints.speculative_prefill: expected true or false`)
	f(Chat, `{"model":"m","nvext":{"agent_hints":{"osl":"a"}},`+hello+`}`, "nvext.agent_hints.osl", `nvext.agent_hints.osl: expected a whole number`)
	f(Completions, `{"model":"m"}`, "prompt", `prompt: missing; send a string, an array of strings or token ids`)
	f(Completions, `{"model":"m","prompt":[]}`, "prompt", `prompt: expected at least one prompt`)
	f(Completions, `{"model":"m","prompt":{}}`, "prompt", `prompt: expected a string, an array of strings, an array of token ids or an array of those`)
	f(Completions, `{"model":"m","prompt":["a",1]}`, "prompt", `prompt: expected a string, an array of strings, an array of token ids or an array of those`)
	f(Completions, `{"model":"m","prompt":[-1]}`, "prompt", `prompt: expected token ids from 0 to 4294967295`)
	f(Completions, `{"model":"m","prompt":[4294967296]}`, "prompt", `prompt: expected token ids from 0 to 4294967295`)
	f(Chat, `{"model":"m","messages":[`+strings.Repeat(`{"role":"a"},`, maxMessages)+`{"role":"a"}]}`, "messages", `messages: more than 131072`)
	f(Completions, `{"model":"m","prompt":[`+strings.Repeat(`1,`, maxPromptTokens)+`1]}`, "prompt", `prompt: more than 8388608 tokens`)
}

// TestParseRequest_DuplicatesOfReadKeys: engines keep the last of two keys, so a body
// that repeats one would be routed as one prompt and run as another.
func TestParseRequest_DuplicatesOfReadKeys(t *testing.T) {
	f := func(body, message string) {
		t.Helper()
		err := ParseRequest(Chat, []byte(body), new(Request))
		if err == nil || err.Error() != message {
			t.Errorf("%s:\ngot  %v\nwant %s", body, err, message)
		}
	}
	f(`{"model":"a","model":"b",`+hello+`}`, `model: given twice; send it once`)
	f(`{"model":"a","\u006dodel":"b",`+hello+`}`, `model: given twice; send it once`)
	f(`{"model":"a",`+hello+`,`+hello+`}`, `messages: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"tools":[],"tools":[]}`, `tools: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"cache_salt":"a","cache_salt":"b"}`, `cache_salt: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"nvext":{},"nvext":{}}`, `nvext: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"nvext":{"agent_hints":{},"agent_hints":{}}}`, `nvext.agent_hints: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"nvext":{"agent_hints":{"osl":1,"osl":2}}}`, `nvext.agent_hints.osl: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"nvext":{"agent_hints":{"speculative_prefill":null,"speculative_prefill":true}}}`,
		`nvext.agent_hints.speculative_prefill: given twice; send it once`)
	f(`{"model":"a",`+hello+`,"stream_options":{"include_usage":null,"include_usage":true}}`, `stream_options.include_usage: given twice; send it once`)
	f(`{"model":"a","messages":[{"role":"user","content":"a","content":"b"}]}`, `messages[0].content: given twice; send it once`)
	f(`{"model":"a","messages":[{"role":"user","ro\u006ce":"system"}]}`, `messages[0].role: given twice; send it once`)
	f(`{"model":"a","messages":[{"role":"user","tool_calls":[],"tool_calls":[]}]}`, `messages[0].tool_calls: given twice; send it once`)
	f(`{"model":"a","messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}`,
		`messages[0].content: a part's text is given twice; send it once`)
	parse(t, Chat, `{"model":"a",`+hello+`,"x":1,"x":2,"vllm_xargs":{"model":1,"model":2}}`)
}

func TestParseRequest_ToleratesAByteOrderMark(t *testing.T) {
	parse(t, Chat, "\xef\xbb\xbf {\"model\":\"m\","+hello+"} \r\n")
}

// TestParseRequest_AllocatesLittle: a pooled Request meets the same model again.
func TestParseRequest_AllocatesLittle(t *testing.T) {
	body := largeBody(100, 3000)
	v := new(Request)
	n := testing.AllocsPerRun(50, func() {
		if err := ParseRequest(Chat, body, v); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// largeBody is a chat of n messages of about size bytes with the escapes of prose and
// code.
func largeBody(n, size int) []byte {
	b := []byte(`{"model":"llama-3","stream":true,"messages":[`)
	line := `The quick brown fox \"jumps\" over the lazy dog, says func(a, b int) { return a[b] }.\n`
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"role":%q,"content":"%d `, []string{"user", "assistant"}[i%2], i)
		for k := 0; k < size; k += len(line) {
			b = append(b, line...)
		}
		b = append(b, `"}`...)
	}
	return append(b, `],"temperature":0.7,"max_tokens":512}`...)
}

// BenchmarkParseRequest reads a 300 KB chat of 100 messages. Budget: well under 1 ms.
func BenchmarkParseRequest(b *testing.B) {
	body := largeBody(100, 3000)
	v := new(Request)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseRequest(Chat, body, v); err != nil {
			b.Fatal(err)
		}
	}
}
