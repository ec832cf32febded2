package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestRewrite(t *testing.T) {
	f := func(body string, e Edit, want string) {
		t.Helper()
		v := parse(t, Chat, body)
		if got := string(Rewrite(nil, []byte(body), v, e)); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, got, want)
		}
		if e.Needed(v) != (body != want) {
			t.Errorf("%s: needed is %v", body, e.Needed(v))
		}
	}
	f(`{"model":"a",`+hello+`}`, Edit{}, `{"model":"a",`+hello+`}`)
	f(`{ "model" : "a" ,`+hello+`}`, Edit{Model: `b"c`}, `{ "model" : "b\"c" ,`+hello+`}`)
	f(`{"model":"a",`+hello+`}`, Edit{Model: "a"}, `{"model":"a",`+hello+`}`)

	usage := Edit{IncludeUsage: true}
	f(`{"model":"a",`+hello+`}`, usage, `{"model":"a",`+hello+`}`)
	f(`{ "model":"a","stream":true,`+hello+`}`, usage, `{"stream_options":{"include_usage":true}, "model":"a","stream":true,`+hello+`}`)
	f(`{"model":"a","stream":true,"stream_options": null,`+hello+`}`, usage, `{"model":"a","stream":true,"stream_options": {"include_usage":true},`+hello+`}`)
	f(`{"model":"a","stream":true,"stream_options":{ },`+hello+`}`, usage, `{"model":"a","stream":true,"stream_options":{"include_usage":true },`+hello+`}`)
	f(`{"model":"a","stream":true,"stream_options":{"x":1},`+hello+`}`, usage, `{"model":"a","stream":true,"stream_options":{"include_usage":true,"x":1},`+hello+`}`)
	f(`{"model":"a","stream":true,"stream_options":{"include_usage": false},`+hello+`}`, usage, `{"model":"a","stream":true,"stream_options":{"include_usage": true},`+hello+`}`)
	f(`{"model":"a","stream":true,"stream_options":{"include_usage":true},`+hello+`}`, usage, `{"model":"a","stream":true,"stream_options":{"include_usage":true},`+hello+`}`)

	salt := Edit{CacheSalt: `t"1`}
	f(`{ "model":"a",`+hello+`}`, salt, `{"cache_salt":"t\"1", "model":"a",`+hello+`}`)
	f(`{"model":"a","cache_salt": "other" ,`+hello+`}`, salt, `{"model":"a","cache_salt": "t\"1" ,`+hello+`}`)
	f(`{"model":"a","cache\u005fsalt":"other",`+hello+`}`, salt, `{"model":"a","cache\u005fsalt":"t\"1",`+hello+`}`)
	f(`{"model":"a",`+hello+`,"cache_salt":null}`, salt, `{"model":"a",`+hello+`,"cache_salt":"t\"1"}`)
	f(`{"model":"a","cache_salt":"",`+hello+`}`, salt, `{"model":"a","cache_salt":"t\"1",`+hello+`}`)
	f(`{"model":"a","cache_salt":"\u0074\"1",`+hello+`}`, salt, `{"model":"a","cache_salt":"\u0074\"1",`+hello+`}`)
	f(`{"model":"a","cache_salt":"other",`+hello+`}`, Edit{}, `{"model":"a","cache_salt":"other",`+hello+`}`)
	f(`{"model":"a","stream":true,`+hello+`}`, Edit{Model: "b", IncludeUsage: true, CacheSalt: "s"},
		`{"stream_options":{"include_usage":true},"cache_salt":"s","model":"b","stream":true,`+hello+`}`)

	hints := Edit{RemoveHints: true}
	f(`{"model":"a","nvext":{"agent_hints":{"osl":1}},`+hello+`}`, hints, `{"model":"a","nvext":{"agent_hints":{"osl":1}},`+hello+`}`)
	f(`{"model":"a","nvext":{"agent_hints":{"speculative_prefill": true}},`+hello+`}`, hints, `{"model":"a","nvext":{"agent_hints":{}},`+hello+`}`)
	f(`{"model":"a","nvext":{"agent_hints":{"speculative_prefill":true , "osl":1}},`+hello+`}`, hints, `{"model":"a","nvext":{"agent_hints":{ "osl":1}},`+hello+`}`)
	f(`{"model":"a","nvext":{"agent_hints":{"osl":1 , "speculative_prefill":null }},`+hello+`}`, hints, `{"model":"a","nvext":{"agent_hints":{"osl":1  }},`+hello+`}`)
	f(`{"model":"a","nvext":{"agent_hints":{"osl":1,"speculative_prefill":false,"x":2}},`+hello+`}`, hints, `{"model":"a","nvext":{"agent_hints":{"osl":1,"x":2}},`+hello+`}`)
}

// TestFC32_OnlyTheHintIsRemoved: every field of an engine passes, known here or not.
func TestFC32_OnlyTheHintIsRemoved(t *testing.T) {
	rest := `"chat_template_kwargs":{"enable_thinking":false},"return_token_ids":true,"cache_salt":"t","priority":2,"rid":"r-1","top_k":20,"min_p":0.05,` +
		`"repetition_penalty":1.1,"vllm_xargs":{"a":{"b":[1,2]}},"stop_token_ids":[1,2],"seed":18446744073709551615,"ignore_eos":true,`
	before := `{"model":"m",` + rest + `"nvext":{"annotations":["x"],"agent_hints":{"speculative_prefill":true,"osl":9}},` + hello + `}`
	want := `{"model":"m",` + rest + `"nvext":{"annotations":["x"],"agent_hints":{"osl":9}},` + hello + `}`
	if got := Rewrite(nil, []byte(before), parse(t, Chat, before), Edit{RemoveHints: true}); string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// twin is a body and what it must become, written side by side.
type twin struct{ body, want strings.Builder }

func (w *twin) same(s string)         { w.differ(s, s) }
func (w *twin) differ(b, want string) { w.body.WriteString(b); w.want.WriteString(want) }

// TestRewrite_KeepsEveryOtherByte makes random bodies with odd spacing, escapes, big
// numbers and repeated unknown keys, each beside the body expected of an edit.
func TestRewrite_KeepsEveryOtherByte(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	v := new(Request)
	for i := range 3000 {
		body, want, e := randomTwin(rng)
		if err := ParseRequest(Chat, []byte(body), v); err != nil {
			t.Fatalf("seed %d, %d: %v\n%s", seed, i, err, body)
		}
		got := Rewrite([]byte("x"), []byte(body), v, e)[1:]
		if string(got) != want {
			t.Fatalf("seed %d, %d: edit %+v of\n     %s\ngot  %s\nwant %s", seed, i, e, body, got, want)
		}
		if !json.Valid(got) {
			t.Fatalf("seed %d, %d: not JSON: %s", seed, i, got)
		}
		if !e.Needed(v) && !bytes.Equal(got, []byte(body)) {
			t.Fatalf("seed %d, %d: an edit that is not needed changed the body", seed, i)
		}
	}
}

func randomTwin(rng *rand.Rand) (body, want string, e Edit) {
	e = Edit{IncludeUsage: rng.IntN(3) > 0, RemoveHints: rng.IntN(3) > 0}
	if rng.IntN(3) > 0 {
		e.Model = []string{"b", `quo"te`, "é"}[rng.IntN(3)]
	}
	if rng.IntN(3) > 0 {
		e.CacheSalt = []string{"b", `quo"te`, "é"}[rng.IntN(3)]
	}
	stream := rng.IntN(4) > 0
	inject := e.IncludeUsage && stream
	space := func() string { return []string{"", "", " ", "\n\t", "  "}[rng.IntN(5)] }
	value := func() string {
		var b strings.Builder
		randomValue(rng, &b, 3)
		return b.String()
	}
	members := []func(w *twin){
		func(w *twin) {
			w.same(`"model"` + space() + ":" + space())
			if old := []string{`"a"`, `"\u0061"`}[rng.IntN(2)]; e.Model != "" {
				w.differ(old, string(AppendString(nil, e.Model)))
			} else {
				w.same(old)
			}
		},
		func(w *twin) {
			w.same(`"messages":` + space() + `[{"content":"\u00e9 \"x\"","role":"user",` + space() + `"extra":` + value() + `}]`)
		},
		func(w *twin) {
			if stream {
				w.same(`"stream"` + space() + `:` + space() + `true`)
			} else {
				w.same(`"stream":null`)
			}
		},
	}
	withOptions := rng.IntN(4) > 0
	if withOptions {
		members = append(members, func(w *twin) { randomOptions(rng, w, inject, space, value) })
	}
	if rng.IntN(4) > 0 {
		members = append(members, func(w *twin) { randomHints(rng, w, e.RemoveHints, space, value) })
	}
	withSalt := rng.IntN(2) > 0
	if withSalt {
		members = append(members, func(w *twin) {
			w.same([]string{`"cache_salt"`, `"cache_s\u0061lt"`}[rng.IntN(2)] + space() + ":" + space())
			if old := []string{`"mine"`, "null", `""`, `"\ud83d\ude00"`}[rng.IntN(4)]; e.CacheSalt != "" {
				w.differ(old, string(AppendString(nil, e.CacheSalt)))
			} else {
				w.same(old)
			}
		})
	}
	for range rng.IntN(4) {
		members = append(members, func(w *twin) {
			w.same([]string{`"temperature"`, `"x"`, `"\u0078"`, `"logit_bias"`}[rng.IntN(4)] + space() + ":" + value())
		})
	}
	rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	var w twin
	w.same(space() + "{")
	if inject && !withOptions {
		w.differ("", `"stream_options":{"include_usage":true},`)
	}
	if e.CacheSalt != "" && !withSalt {
		w.differ("", `"cache_salt":`+string(AppendString(nil, e.CacheSalt))+",")
	}
	for i, m := range members {
		if i > 0 {
			w.same(",")
		}
		w.same(space())
		m(&w)
		w.same(space())
	}
	w.same("}" + space())
	return w.body.String(), w.want.String(), e
}

func randomOptions(rng *rand.Rand, w *twin, inject bool, space func() string, value func() string) {
	w.same(`"stream_options"` + space() + ":" + space())
	put := func(before, after string) {
		if inject {
			w.differ(before, after)
		} else {
			w.same(before)
		}
	}
	switch rng.IntN(5) {
	case 0:
		put(`null`, `{"include_usage":true}`)
	case 1:
		w.same("{")
		put("", `"include_usage":true`)
		w.same(space() + "}")
	case 2:
		w.same("{")
		put("", `"include_usage":true,`)
		w.same(space() + `"continuous_usage_stats"` + space() + ":" + value() + "}")
	case 3:
		w.same("{" + space() + `"a":` + value() + `,"include_us\u0061ge"` + space() + ":" + space())
		put([]string{"false", "null"}[rng.IntN(2)], "true")
		w.same(space() + "}")
	case 4:
		w.same(`{"include_usage":true,"b":` + value() + "}")
	}
}

func randomHints(rng *rand.Rand, w *twin, remove bool, space func() string, value func() string) {
	w.same(`"nvext":` + space() + "{" + space())
	if rng.IntN(2) == 0 {
		w.same(`"annotations":` + value() + "," + space())
	}
	w.same(`"agent_hints"` + space() + ":" + space() + "{")
	hint := `"speculative_prefill"` + space() + ":" + space() + []string{"true", "false", "null"}[rng.IntN(3)]
	put := func(s string) {
		if remove {
			w.differ(s, "")
		} else {
			w.same(s)
		}
	}
	switch rng.IntN(5) {
	case 0:
		w.same(space())
		put(hint)
		w.same(space())
	case 1:
		w.same(space())
		put(hint + space() + ",")
		w.same(space() + `"osl":` + space() + "12")
	case 2:
		w.same(`"osl":12` + space())
		put("," + space() + hint)
		w.same(space())
	case 3:
		w.same(`"x":` + value())
		put("," + space() + hint)
		w.same(space() + `,"y":` + value())
	case 4:
		w.same(`"y":` + value())
	}
	w.same("}" + space() + "}")
}

func TestRewrite_AllocatesNothing(t *testing.T) {
	body := []byte(`{"model":"a","stream":true,"nvext":{"agent_hints":{"speculative_prefill":true}},` + hello + `}`)
	v := new(Request)
	if err := ParseRequest(Chat, body, v); err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(50, func() {
		dst = Rewrite(dst[:0], body, v, Edit{Model: "other", IncludeUsage: true, RemoveHints: true, CacheSalt: "s"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
