package openai

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// scan feeds stream in the chunks that cuts end and returns its events as text.
func scan(s *Scanner, stream []byte, cuts []int) []string {
	var got []string
	note := func(ev Event, ok bool) bool {
		if ok {
			got = append(got, fmt.Sprintf("%d-%d %q error=%v oversize=%v", ev.Start, ev.End, ev.Data, ev.Error, ev.Oversize))
		}
		return ok
	}
	at := 0
	for _, c := range append(cuts, len(stream)) {
		chunk := bytes.Clone(stream[at:c])
		s.Feed(chunk)
		for note(s.Next()) {
		}
		for i := range chunk { // the chunk's memory is used again
			chunk[i] = 'X'
		}
		at = c
	}
	note(s.Close())
	return got
}

func TestScanner(t *testing.T) {
	f := func(stream string, want ...string) {
		t.Helper()
		if got := scan(new(Scanner), []byte(stream), nil); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q:\ngot  %v\nwant %v", stream, got, want)
		}
	}
	ok := " error=false oversize=false"
	f("")
	f("\n\n\r\n")
	f("data: a\n\n", `0-9 "a"`+ok)
	f("data:a\n\ndata: b\n\n", `0-8 "a"`+ok, `8-17 "b"`+ok)
	f("data:  a\r\n\r\n", `0-11 " a"`+ok)
	f("data: a\r\rdata: b\r\r", `0-9 "a"`+ok, `9-18 "b"`+ok)
	f("\xef\xbb\xbfdata: a\n\n", `0-12 "a"`+ok)
	f(": ping\n\ndata: a\n\n", `8-17 "a"`+ok)
	f("data: a\ndata: b\ndata\ndata: c\n\n", `0-30 "a\nb\n\nc"`+ok)
	f("id: 1\nevent: message\nretry: 5\ndata: a\nunknown: x\n: c\n\n", `0-54 "a"`+ok)
	f("data:\n\ndata: \n\nevent: ping\n\ndata: a\n\n", `28-37 "a"`+ok)
	f("event: error\ndata: a\n\ndata: b\n\n", `0-22 "a" error=true oversize=false`, `22-31 "b"`+ok)
	f("error: {}\n\n", `0-11 "{}" error=true oversize=false`)
	f("data: a\n\ndata: [DONE]", `0-9 "a"`+ok, `9-21 "[DONE]"`+ok)
	f("data: a\n", `0-8 "a"`+ok)
	f("database: a\n\ndata : b\n\n")
}

// TestFC17_FormsOfSSE: pings, CRLF, data without a space, blank data and data over
// several lines change nothing in what is read.
func TestFC17_FormsOfSSE(t *testing.T) {
	plain := `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n" +
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\ndata: [DONE]\n\n"
	odd := strings.Repeat(": ping\r\n\r\n", 400) + "data:\r\n\r\n" +
		"data:" + `{"choices":[{"index":0,"delta":` + "\r\ndata:" + `{"content":"a"}}]}` + "\r\n\r\n" + "event: x\r\nid: 7\r\n" +
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\r\n\r\ndata: [DONE]\r\n\r\n"
	if a, b := follow([]byte(plain), nil, 1), follow([]byte(odd), nil, 1); a != b {
		t.Errorf("plain %s\nodd   %s", a, b)
	}
}

// TestScanner_AnyChunking: the events and their places do not depend on the cuts.
func TestScanner_AnyChunking(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 400 {
		stream := randomStream(rng)
		limit := []int{0, 20, 7}[i%3]
		whole := scan(&Scanner{Limit: limit}, stream, nil)
		bytewise := make([]int, len(stream))
		for k := range bytewise {
			bytewise[k] = k
		}
		for _, cuts := range [][]int{bytewise, randomCuts(rng, len(stream)), randomCuts(rng, len(stream)), {len(stream) / 2}} {
			s := &Scanner{Limit: limit}
			if got := scan(s, stream, cuts); fmt.Sprint(got) != fmt.Sprint(whole) {
				t.Fatalf("seed %d, %d: %q cut at %v\ngot  %v\nwant %v", seed, i, stream, cuts, got, whole)
			}
		}
	}
}

// TestScanner_EventsCanBeLeftOut: cutting the range of one event out of the stream
// leaves the others.
func TestScanner_EventsCanBeLeftOut(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	data := func(stream []byte) (list []string, ranges []Event) {
		s := new(Scanner)
		s.Feed(stream)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			list, ranges = append(list, string(ev.Data)), append(ranges, ev)
		}
		return list, ranges
	}
	for range 300 {
		stream := randomStream(rng)
		list, ranges := data(stream)
		if len(list) == 0 {
			continue
		}
		i := rng.IntN(len(list))
		rest := append(bytes.Clone(stream[:ranges[i].Start]), stream[ranges[i].End:]...)
		want := append(append([]string{}, list[:i]...), list[i+1:]...)
		if got, _ := data(rest); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Fatalf("seed %d: %q without event %d\ngot  %q\nwant %q", seed, stream, i, got, want)
		}
	}
}

func TestScanner_SettledHoldsBackOnlyWhatIsOpen(t *testing.T) {
	s := new(Scanner)
	f := func(chunk string, settled int64) {
		t.Helper()
		s.Feed([]byte(chunk))
		for _, ok := s.Next(); ok; _, ok = s.Next() {
		}
		if got := s.Settled(); got != settled {
			t.Errorf("after %q: settled %d, want %d", chunk, got, settled)
		}
	}
	f("data: a\n", 0)
	f("\nda", 9)
	f("ta: b\n\n: pi", 18)
	f("ng\n", 25)
	f("\ndata: c\n\n", 35)
	f("data: d\r\n\r\n", 46)
	f("data: e\r\n\r", 56)
	f("\n", 57)
}

// TestFC18_LongLines: lines beyond the limit are counted and skipped, those below it
// read, and what follows is read all the same.
func TestFC18_LongLines(t *testing.T) {
	for _, size := range []int{70 << 10, 1200 << 10, 20 << 20} {
		long := fmt.Appendf(nil, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}]}`, bytes.Repeat([]byte("x"), size))
		stream := append(long, "\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n"...)
		s := new(Scanner)
		var st Stream
		for at := 0; at < len(stream); at += 32 << 10 {
			s.Feed(stream[at:min(at+32<<10, len(stream))])
			for ev, ok := s.Next(); ok; ev, ok = s.Next() {
				st.Observe(ev)
			}
		}
		over := 0
		if size > DefaultEventLimit {
			over = 1
		}
		if s.Oversize != over || st.Unread != over || st.FirstToken != (over == 0) || st.Finish != "tool_calls" || !st.Done {
			t.Errorf("%d bytes: oversize %d, %+v", size, s.Oversize, st)
		}
		if c := cap(s.line) + cap(s.joined); c > 4*DefaultEventLimit {
			t.Errorf("%d bytes: the scanner holds %d", size, c)
		}
		if s.Reset(); cap(s.line)+cap(s.joined) > 128<<10 {
			t.Errorf("%d bytes: the scanner keeps %d", size, cap(s.line)+cap(s.joined))
		}
	}
}

func randomCuts(rng *rand.Rand, n int) []int {
	var cuts []int
	for at := 0; at < n; {
		if at += 1 + rng.IntN(12); at < n {
			cuts = append(cuts, at)
		}
	}
	return cuts
}

// randomStream writes lines of every kind with every line end.
func randomStream(rng *rand.Rand) []byte {
	var b []byte
	if rng.IntN(4) == 0 {
		b = append(b, "\xef\xbb\xbf"...)
	}
	lines := []string{"", "", "", "data: a", "data:b", "data:", "data", "data: {\"choices\":[]}", "data: [DONE]", ": ping", ":", "event: error", "id: 1",
		"error: x", "data: 123456789012345678901234567890", ": 123456789012345678901234567890", "other"}
	for range 1 + rng.IntN(20) {
		b = append(b, lines[rng.IntN(len(lines))]...)
		b = append(b, []string{"\n", "\r\n", "\r", "\n\n", "\r\n\r\n"}[rng.IntN(5)]...)
	}
	if rng.IntN(3) == 0 {
		b = append(b, lines[rng.IntN(len(lines))]...)
	}
	return b
}
