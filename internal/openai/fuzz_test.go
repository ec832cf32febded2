package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

// FuzzParseRequest: no body panics, what is accepted is JSON, and edits keep it so.
func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"m",` + hello + `}`,
		`{"model":"m","stream":true,"stream_options":{"include_usage":false},"nvext":{"agent_hints":{"speculative_prefill":true,"osl":1}},` + hello + `}`,
		`{"model":"\ud83d\ude00","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}],"n":2}`,
		`{"model":"m","prompt":[[1,2],[3]]}`, `{"model":"m","prompt":["a","b"]}`, `{"model":"m","prompt":"a"} `,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []Kind{Chat, Completions} {
			var v Request
			if ParseRequest(kind, body, &v) != nil {
				continue
			}
			// encoding/json knows neither NaN nor a byte order mark.
			strict := json.Valid(body)
			if !strict && !bytes.Contains(body, []byte("NaN")) && !bytes.Contains(body, []byte("Infinity")) && body[0] != 0xef {
				t.Fatalf("accepted %q", body)
			}
			out := Rewrite(nil, body, &v, Edit{Model: "x", IncludeUsage: true, RemoveHints: true})
			if strict && !json.Valid(out) {
				t.Fatalf("%q became %q", body, out)
			}
			var w Request
			if err := ParseRequest(kind, out, &w); err != nil {
				t.Fatalf("%q became %q: %v", body, out, err)
			}
			if w.Model != "x" || v.Stream != w.Stream || w.Stream && !w.IncludeUsage || w.HintSpeculative != nil || len(v.Messages) != len(w.Messages) {
				t.Fatalf("%q became %q", body, out)
			}
		}
	})
}

// FuzzScanner: no stream panics, and the cut makes no difference.
func FuzzScanner(f *testing.F) {
	f.Add(benchStream()[:600], uint(77))
	f.Add([]byte("\xef\xbb\xbfdata: a\r\rdata:\n\n: x\n\ndata: b\r\ndata: c\r\n\r\ndata: [DONE]"), uint(9))
	f.Fuzz(func(t *testing.T, stream []byte, at uint) {
		limit := 64
		cut := int(at % uint(len(stream)+1))
		whole := scan(&Scanner{Limit: limit}, stream, nil)
		if parts := scan(&Scanner{Limit: limit}, stream, []int{cut}); fmt.Sprint(whole) != fmt.Sprint(parts) {
			t.Fatalf("cut at %d: %v, want %v", cut, parts, whole)
		}
		if a, b := follow(stream, nil, 1), follow(stream, []int{cut}, 1); a != b {
			t.Fatalf("cut at %d: %s, want %s", cut, b, a)
		}
	})
}
