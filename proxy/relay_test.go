package proxy

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router"
)

// account is a booking that remembers what it was told.
type account struct {
	first, tokens, done int
	outcome             router.Outcome
}

func (a *account) FirstToken()           { a.first++ }
func (a *account) Progress(n int)        { a.tokens += n }
func (a *account) Done(o router.Outcome) { a.done++; a.outcome = o }

func newTestRelay(src io.Reader, cut bool) (*relay, *account) {
	m, _ := newMetrics(nil)
	a := new(account)
	return &relay{src: src, lease: a, cut: cut, start: time.Now(), ttft: m.ttft.WithLabelValues("x"), itl: m.itl.WithLabelValues("x"),
		broken: func(err error, midway bool) []byte { return faultUpstream(err).event(nil, midway) }}, a
}

// source delivers a stream in the given pieces and ends with err.
type source struct {
	pieces []string
	err    error
}

func (s *source) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, s.err
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; s.pieces[0] == "" {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

// cutting returns s in random pieces.
func cutting(rnd *rand.Rand, s string, largest int) (pieces []string) {
	for s != "" {
		n := 1 + rnd.IntN(min(len(s), largest))
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return pieces
}

// streams are what engines send, and what their clients must get where usage was asked for
// by the proxy alone.
var streams = map[string]struct{ in, out string }{
	"plain":                           {delta("a") + delta("b") + finish + doneEnd, ""},
	"usage":                           {delta("a") + delta("b") + finish + usage + doneEnd, delta("a") + delta("b") + finish + doneEnd},
	"usage in a late frame with text": {delta("a") + strings.Replace(finish, `"choices"`, `"usage":{"prompt_tokens":9,"completion_tokens":2},"choices"`, 1) + doneEnd, ""},
	"crlf":                            {strings.ReplaceAll(delta("a")+usage+doneEnd, "\n", "\r\n"), strings.ReplaceAll(delta("a")+doneEnd, "\n", "\r\n")},
	"crlf, then lf":                   {strings.ReplaceAll(delta("a"), "\n", "\r\n") + usage + doneEnd, strings.ReplaceAll(delta("a"), "\n", "\r\n") + doneEnd},
	"comments":                        {": ping\n\n" + delta("a") + strings.Repeat(": ping\n\n", 400) + usage + ": bye\n\n" + doneEnd, ": ping\n\n" + delta("a") + strings.Repeat(": ping\n\n", 400) + ": bye\n\n" + doneEnd},
	"no space":                        {strings.ReplaceAll(delta("a")+usage+doneEnd, "data: ", "data:"), strings.ReplaceAll(delta("a")+doneEnd, "data: ", "data:")},
	"event and id":                    {"event: x\nid: 1\n" + delta("a") + "id: 2\n" + usage + "retry: 5\n\n" + doneEnd, "event: x\nid: 1\n" + delta("a") + "retry: 5\n\n" + doneEnd},
	"long":                            {delta(strings.Repeat("x", 70<<10)) + usage + doneEnd, delta(strings.Repeat("x", 70<<10)) + doneEnd},
	"nulls":                           {`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":null},"logprobs":{"x":NaN}}],"matched_stop":1}` + "\n\n" + usage + doneEnd, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":null},"logprobs":{"x":NaN}}],"matched_stop":1}` + "\n\n" + doneEnd},
	"not json":                        {"data: {oops\n\n" + delta("a") + usage + doneEnd, "data: {oops\n\n" + delta("a") + doneEnd},
	"no last newline":                 {delta("a") + strings.TrimRight(doneEnd, "\n"), ""},
	"usage at the very end":           {delta("a") + strings.TrimRight(usage, "\n"), delta("a")},
	"empty":                           {"", ""},
}

// TestFC16_StreamsPassUnchangedInAnyPieces also covers FC-17, FC-18, FC-23, FC-26 and FC-30.
func TestFC16_StreamsPassUnchangedInAnyPieces(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 0))
	for name, s := range streams {
		for _, cut := range []bool{false, true} {
			want := s.in
			if cut && s.out != "" {
				want = s.out
			}
			var tokens = -1
			for i := range 60 {
				largest := []int{1, 7, 100, 5000}[i%4]
				if len(s.in) > 10000 && largest < 100 {
					continue
				}
				r, a := newTestRelay(&source{cutting(rnd, s.in, largest), io.EOF}, cut)
				var got strings.Builder
				buf := make([]byte, 1+rnd.IntN(4096))
				_, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{r}, buf)
				r.close()
				if got.String() != want || err != nil {
					t.Fatalf("%s, cut=%v, seed %d round %d: %v\n got %.300q\nwant %.300q", name, cut, seed, i, err, got.String(), want)
				}
				if tokens < 0 {
					tokens = a.tokens
				}
				if a.done != 1 || a.tokens != tokens || a.first != min(tokens, 1) {
					t.Fatalf("%s: told %+v, tokens were %d", name, a, tokens)
				}
				if strings.Contains(s.in, "cached_tokens") && (a.outcome.CachedTokens != 4 || a.outcome.PromptTokens != 9 || a.outcome.OutputTokens != 2) {
					t.Fatalf("%s: outcome %+v", name, a.outcome)
				}
				if strings.Contains(s.in, "[DONE]") != a.outcome.OK {
					t.Fatalf("%s: outcome %+v", name, a.outcome)
				}
			}
		}
	}
}

func TestRelay_HoldsBackNoWholeEvent(t *testing.T) {
	for _, cut := range []bool{false, true} {
		src := &source{[]string{delta("a"), delta("b") + delta("c"), ": ping\n\n", usage + doneEnd}, io.EOF}
		r, a := newTestRelay(src, cut)
		buf := make([]byte, 4096)
		for i, want := range []string{delta("a"), delta("b") + delta("c"), ": ping\n\n"} {
			if n, err := r.Read(buf); string(buf[:n]) != want || err != nil {
				t.Errorf("cut=%v: read %d gives %q, %v", cut, i, buf[:n], err)
			}
			// The router hears of the first token when the client has it.
			if told := min(i, 1); a.first != told || a.tokens != []int{0, 3, 3}[i] {
				t.Errorf("cut=%v: told after read %d: %+v", cut, i, a)
			}
		}
		r.close()
		if a.done != 1 || a.outcome.OK {
			t.Errorf("cut=%v: closed early: %+v", cut, a)
		}
	}
}

func TestFC19_AStreamThatBreaksEndsVisibly(t *testing.T) {
	for _, cut := range []bool{false, true} {
		for name, in := range map[string]string{
			"between events":     delta("a") + delta("b"),
			"within an event":    delta("a") + delta("b")[:20],
			"within a new line":  delta("a") + delta("b")[:len(delta("b"))-1],
			"before the usage":   delta("a") + finish,
			"within a long line": delta("a") + delta(strings.Repeat("y", 3*cutBytes))[:2*cutBytes],
			"before any event":   "",
		} {
			r, a := newTestRelay(&source{[]string{in}, errors.New("boom")}, cut)
			if in == "" {
				r.src = &source{nil, errors.New("boom")}
			}
			var got strings.Builder
			_, err := io.Copy(struct{ io.Writer }{&got}, struct{ io.Reader }{r})
			r.close()
			rest, ok := strings.CutPrefix(got.String(), in)
			if !ok || !errors.Is(err, errBroken) {
				t.Errorf("%s, cut=%v: %v, got %.200q", name, cut, err, got.String())
				continue
			}
			event, ok := strings.CutPrefix(strings.TrimLeft(rest, "\n"), "data: ")
			if e := parseError(t, event); !ok || e.Type != typeServer || strings.Contains(rest, "[DONE]") {
				t.Errorf("%s: the end is %q", name, rest)
			}
			if midway := in != "" && !strings.HasSuffix(in, "\n\n"); midway != strings.HasPrefix(rest, "\n\n") {
				t.Errorf("%s: the end is %q", name, rest)
			}
			if a.done != 1 || a.outcome.OK {
				t.Errorf("%s: %+v", name, a)
			}
		}
	}
}

// endless repeats one piece of a stream.
type endless struct{ piece []byte }

func (e *endless) Read(p []byte) (int, error) { return copy(p, e.piece), nil }

// TestRelay_AllocatesNothing: the loop that reads, reads along and hands on.
func TestRelay_AllocatesNothing(t *testing.T) {
	for _, cut := range []bool{false, true} {
		r, a := newTestRelay(&endless{[]byte(delta("token"))}, cut)
		buf := make([]byte, 4096)
		read := func() {
			if _, err := r.Read(buf); err != nil {
				panic(err)
			}
		}
		read()
		if n := testing.AllocsPerRun(500, read); n != 0 {
			t.Errorf("cut=%v: %v allocations per event", cut, n)
		}
		if a.tokens < 500 || a.first != 1 {
			t.Errorf("cut=%v: %+v", cut, a)
		}
		r.close()
	}
}

// BenchmarkRelay measures one event of a stream, from the worker's buffer to the client's.
func BenchmarkRelay(b *testing.B) {
	for _, cut := range []bool{false, true} {
		b.Run(map[bool]string{false: "pass", true: "cut"}[cut], func(b *testing.B) {
			r, _ := newTestRelay(&endless{[]byte(delta("token"))}, cut)
			buf := make([]byte, 4096)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Read(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestRelay_HoldsNoBufferWhileItWaits(t *testing.T) {
	waiting := delta("a") + delta("b")
	src := &source{[]string{waiting[:60], waiting[60:], delta("c"), usage, delta("d")}, io.EOF}
	r, _ := newTestRelay(src, true)
	defer r.close()
	probe := &probing{Reader: src, before: func() {
		if whole := r.scan.Settled() == r.fed; whole != (r.buf == nil) {
			t.Errorf("after %d bytes, whole events: %v, %d bytes of buffer are held", r.fed, whole, cap(r.buf))
		}
	}}
	r.src = probe
	got, err := io.ReadAll(r)
	if want := waiting + delta("c") + delta("d"); string(got) != want || err != nil || probe.reads != 6 {
		t.Errorf("%d reads, %v:\n got %q\nwant %q", probe.reads, err, got, want)
	}
}

// probing is a source that calls before at each read.
type probing struct {
	io.Reader
	before func()
	reads  int
}

func (p *probing) Read(b []byte) (int, error) {
	p.reads++
	p.before()
	return p.Reader.Read(b)
}
