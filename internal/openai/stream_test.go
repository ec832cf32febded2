package openai

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// follow runs a stream through scanner and observer, in the chunks that cuts end, and
// returns all that was learned as text.
func follow(stream []byte, cuts []int, n int) string {
	var s Scanner
	st := Stream{N: n}
	var frames []string
	at := 0
	observe := func(ev Event, ok bool) bool {
		if ok {
			frames = append(frames, frameNames(st.Observe(ev)))
		}
		return ok
	}
	for _, c := range append(cuts, len(stream)) {
		s.Feed(stream[at:c])
		for observe(s.Next()) {
		}
		at = c
	}
	observe(s.Close())
	return fmt.Sprintf("%s | token=%v deltas=%d finished=%d %q done=%v failed=%v %q unread=%d usage=%v",
		strings.Join(frames, " "), st.FirstToken, st.Deltas, st.Finished, st.Finish, st.Done, st.Failed, st.Error, st.Unread, st.UsageOrNone())
}

func frameNames(f Frame) string {
	var names []string
	for i, n := range []string{"token", "finish", "usage", "only", "done", "error", "unread"} {
		if f&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if names == nil {
		return "-"
	}
	return strings.Join(names, "+")
}

func sse(frames ...string) []byte {
	var b []byte
	for _, f := range frames {
		b = append(b, "data: "+f+"\n\n"...)
	}
	return b
}

func chunk(delta string) string { return `{"choices":[{"index":0,"delta":` + delta + `}]}` }

func TestStream(t *testing.T) {
	f := func(n int, want string, frames ...string) {
		t.Helper()
		if got := follow(sse(frames...), nil, n); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	role := `{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":null,"reasoning_content":null},"finish_reason":null}]}`
	stop := `{"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}`
	usage := `{"choices":[],"usage":{"prompt_tokens":11,"total_tokens":13,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`

	f(1, `- token token finish usage+only done | token=true deltas=2 finished=1 "stop" done=true failed=false "" unread=0 usage={11 2 8 -1}`,
		role, chunk(`{"content":"a"}`), chunk(`{"content":"b"}`), stop, usage, "[DONE]")
	// Every kind of output is a first token.
	for _, delta := range []string{`{"content":" "}`, `{"reasoning":"x"}`, `{"reasoning_content":"x"}`, `{"content":null,"tool_calls":[{"index":0}]}`,
		`{"function_call":{"name":"f"}}`, `{"refusal":"no"}`, `{"content":"","reasoning":"x"}`, `{"content":[{"type":"text"}]}`} {
		f(1, `- token | token=true deltas=1 finished=0 "" done=false failed=false "" unread=0 usage={-1 -1 -1 -1}`, role, chunk(delta))
	}
	for _, delta := range []string{`{}`, `{"role":"assistant"}`, `{"content":""}`, `{"content":null}`, `{"tool_calls":[]}`, `{"tool_calls":[ ]}`, `{"audio":{}}`, `null`, `7`} {
		f(1, `- | token=false deltas=0 finished=0 "" done=false failed=false "" unread=0 usage={-1 -1 -1 -1}`, chunk(delta))
	}
	// Completions, also where a token has no text of its own.
	f(1, `token token finish | token=true deltas=2 finished=1 "length" done=false failed=false "" unread=0 usage={-1 -1 -1 -1}`,
		`{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}`,
		`{"choices":[{"index":0,"text":"","token_ids":[77]}]}`, `{"choices":[{"index":0,"text":"","finish_reason":"length"}]}`)
	// A finish reason that repeats counts once; one frame may hold output and finish.
	f(1, `token+finish - - | token=true deltas=1 finished=1 "stop" done=false failed=false "" unread=0 usage={-1 -1 -1 -1}`,
		`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`, stop, `{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`)
	// Absent cached tokens are not zero, and zero is not absent.
	f(1, `usage+only | token=false deltas=0 finished=0 "" done=false failed=false "" unread=0 usage={5 1 -1 -1}`,
		`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}`)
	f(1, `usage+only | token=false deltas=0 finished=0 "" done=false failed=false "" unread=0 usage={5 1 -1 3}`,
		`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":3}}}`)
	f(1, `usage+only | token=false deltas=0 finished=0 "" done=false failed=false "" unread=0 usage={5 1 0 -1}`,
		`{"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`)
	// A number that no engine can mean is not believed.
	f(1, `usage+only | token=false deltas=0 finished=0 "" done=false failed=false "" unread=0 usage={-1 1 -1 -1}`,
		`{"usage":{"prompt_tokens":9000000000000000000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":-9}}}`)
	// Continuous usage: the last values win, and what a later frame leaves out stays.
	f(1, `token+usage token+usage - | token=true deltas=2 finished=0 "" done=false failed=false "" unread=0 usage={5 2 4 -1}`,
		`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}}`,
		`{"choices":[{"index":0,"delta":{"content":"b"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`, `{"choices":[],"usage":null}`)
	// Errors in the stream: vLLM, SGLang's flat form, and a bare string.
	f(1, `token error done | token=true deltas=1 finished=0 "" done=true failed=true "out of memory" unread=0 usage={-1 -1 -1 -1}`,
		chunk(`{"content":"a"}`), `{"error":{"message":"out of \u006demory","type":"InternalServerError","code":500}}`, "[DONE]")
	f(1, `error | token=false deltas=0 finished=0 "" done=false failed=true "bad" unread=0 usage={-1 -1 -1 -1}`,
		`{"object":"error","message":"bad","type":"BadRequest","code":400}`)
	f(1, `error - | token=false deltas=0 finished=0 "" done=false failed=true "bad" unread=0 usage={-1 -1 -1 -1}`, `{"error":"bad"}`, `{"error":null}`)
	// llama.cpp's timings stand in for a usage that was not asked for.
	f(1, `finish | token=false deltas=0 finished=1 "stop" done=false failed=false "" unread=0 usage={30 4 20 -1}`,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{"cache_n":20,"prompt_n":10,"prompt_ms":1.5,"predicted_n":4}}`)
	// What is no chunk is counted and hurts nothing.
	f(1, `unread unread - token | token=true deltas=1 finished=0 "" done=false failed=false "" unread=2 usage={-1 -1 -1 -1}`,
		`{"choices":[{"index":0`, `hello`, `{"choices":{},"usage":7,"object":7}`, chunk(`{"content":"a"}`))
}

// TestFC29_ManyChoices: n = 3, ends in the order 2, 0, 1.
func TestFC29_ManyChoices(t *testing.T) {
	end := func(i int, reason string) string {
		return fmt.Sprintf(`{"choices":[{"index":%d,"delta":{},"finish_reason":%q}]}`, i, reason)
	}
	got := follow(sse(`{"choices":[{"index":0,"delta":{"content":"a"}},{"index":2,"delta":{"content":"b"}}]}`,
		end(2, "length"), end(2, "length"), end(0, "stop"), end(1, "tool_calls"), end(1, "stop"), end(-1, "stop"), end(500, "stop")), nil, 3)
	want := `token - - - finish - - - | token=true deltas=2 finished=3 "stop" done=false failed=false "" unread=0 usage={-1 -1 -1 -1}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestFC30_LogProbs: values that strict decoders reject do not stop the stream.
func TestFC30_LogProbs(t *testing.T) {
	got := follow(sse(
		`{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-9999.0,"bytes":[240,159]},{"logprob":null}]}}]}`,
		`{"choices":[{"index":0,"logprobs":{"content":[{"logprob":NaN},{"logprob":-Infinity}]},"delta":{"content":"b"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"c"},"logprobs":{"content":[{"logprob":nan}]},"finish_reason":"stop"}]}`,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`), nil, 1)
	want := `token token token+unread finish | token=true deltas=3 finished=1 "stop" done=false failed=false "" unread=1 usage={-1 -1 -1 -1}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestFC16_AnyChunking: what is learned of a stream does not depend on how it was cut.
func TestFC16_AnyChunking(t *testing.T) {
	frames := []string{`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`}
	for i := range 20 {
		frames = append(frames, chunk(fmt.Sprintf(`{"content":"tok\n%d é"}`, i)))
	}
	frames = append(frames, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":8}}}`, "[DONE]")
	stream := sse(frames...)
	want := follow(stream, nil, 1)
	for i := range len(stream) {
		if got := follow(stream, []int{i}, 1); got != want {
			t.Fatalf("cut at %d: got %s\nwant %s", i, got, want)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		cuts := randomCuts(rng, len(stream))
		if got := follow(stream, cuts, 1); got != want {
			t.Fatalf("cuts %v: got %s\nwant %s", cuts, got, want)
		}
	}
}

func TestParseResponse(t *testing.T) {
	var s Stream
	body := `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"},
	 {"index":1,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]},"finish_reason":"tool_calls"}],
	 "usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}`
	if err := ParseResponse([]byte(body), 2, &s); err != nil || s.Finish != "stop" || !s.Complete() || s.UsageOrNone() != (Usage{9, 4, 2, -1}) {
		t.Errorf("%v %+v", err, s)
	}
	if err := ParseResponse([]byte(`{"error":{"message":"no"}}`), 1, &s); err != nil || !s.Failed || s.Error != "no" || s.Complete() || s.UsageOrNone() != NoUsage {
		t.Errorf("%v %+v", err, s)
	}
	if err := ParseResponse([]byte(`<html>`), 1, &s); err == nil {
		t.Error("a page was taken for JSON")
	}
}

func benchStream() []byte {
	frames := make([]string, 0, 102)
	for i := range 100 {
		frames = append(frames, fmt.Sprintf(`{"id":"chatcmpl-5f0a","object":"chat.completion.chunk","created":1760000000,"model":"llama-3","choices":[{"index":0,"delta":{"content":" token%d"},"logprobs":null,"finish_reason":null}]}`, i))
	}
	return sse(append(frames, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, "[DONE]")...)
}

// TestScan_AllocatesNothing covers the loop that every relayed byte passes, with
// events whole in a chunk and cut in two.
func TestScan_AllocatesNothing(t *testing.T) {
	stream := benchStream()
	var s Scanner
	var st Stream
	run := func() {
		s.Reset()
		st.Reset(1)
		for at := 0; at < len(stream); at += 1000 {
			s.Feed(stream[at:min(at+1000, len(stream))])
			for ev, ok := s.Next(); ok; ev, ok = s.Next() {
				st.Observe(ev)
			}
		}
		s.Close()
	}
	run()
	if !st.Done || st.Deltas != 100 {
		t.Fatalf("%+v", st)
	}
	if n := testing.AllocsPerRun(50, run); n != 0 {
		t.Errorf("%v allocations per stream", n)
	}
}

// BenchmarkScan measures scanning and observing per event.
func BenchmarkScan(b *testing.B) {
	stream := benchStream()
	var s Scanner
	var st Stream
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	events := 0
	for b.Loop() {
		s.Reset()
		st.Reset(1)
		s.Feed(stream)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			st.Observe(ev)
			events++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}
