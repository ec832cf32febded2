package bench

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	goopenai "github.com/sashabaranov/go-openai"

	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/script"
)

// step is something a scripted endpoint does at an instant after the request came.
type step struct {
	at   time.Duration
	data string
	err  error
}

// scripted is an endpoint in memory. It answers with the steps' bytes at their
// instants; headers come at the first step that is no "headers" line, or at one.
type scripted struct {
	status      int
	contentType string
	header      http.Header
	steps       []step
	headersAt   time.Duration
	refuse      error
	got         *http.Request
	body        string
}

func (s *scripted) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	s.got = req
	raw, _ := io.ReadAll(req.Body)
	s.body = string(raw)
	if s.refuse != nil {
		return nil, s.refuse
	}
	select {
	case <-time.After(s.headersAt):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	h := http.Header{"Content-Type": {s.contentType}}
	for k, v := range s.header {
		h[k] = v
	}
	return &http.Response{StatusCode: s.status, Status: fmt.Sprint(s.status), Header: h, Request: req,
		Body: &scriptedBody{req: req, start: start, steps: s.steps}}, nil
}

type scriptedBody struct {
	req   *http.Request
	start time.Time
	steps []step
}

func (b *scriptedBody) Close() error { return nil }

func (b *scriptedBody) Read(p []byte) (int, error) {
	if len(b.steps) == 0 {
		return 0, io.EOF
	}
	s := b.steps[0]
	select {
	case <-time.After(time.Until(b.start.Add(s.at))):
	case <-b.req.Context().Done():
		return 0, b.req.Context().Err()
	}
	b.steps = b.steps[1:]
	if s.err != nil {
		return 0, s.err
	}
	return copy(p, s.data), nil
}

// parseScript reads lines of the form "120ms data: {…}", "50ms headers", "1s EOF",
// "1s RESET" and "status 503". \n in an event's text is a line end.
func parseScript(t *testing.T, input string) *scripted {
	s := &scripted{status: 200, contentType: "text/event-stream; charset=utf-8", header: http.Header{}}
	for line := range strings.Lines(input) {
		at, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch at {
		case "status":
			fmt.Sscan(what, &s.status)
			continue
		case "type":
			s.contentType = what
			continue
		case "header":
			k, v, _ := strings.Cut(what, ": ")
			s.header.Set(k, v)
			continue
		case "refuse":
			s.refuse = fmt.Errorf("%s", what)
			continue
		}
		d, err := time.ParseDuration(at)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch what {
		case "headers":
			s.headersAt = d
		case "EOF":
			s.steps = append(s.steps, step{at: d, err: io.EOF})
		case "RESET":
			s.steps = append(s.steps, step{at: d, err: fmt.Errorf("connection reset by peer")})
		case "HANG":
			s.steps = append(s.steps, step{at: 24 * time.Hour, err: io.EOF})
		default:
			end := "\n\n"
			if strings.HasSuffix(what, `\`) || s.status != 200 || !strings.HasPrefix(s.contentType, "text/event") {
				what, end = strings.TrimSuffix(what, `\`), ""
			}
			s.steps = append(s.steps, step{at: d, data: strings.ReplaceAll(what, `\n`, "\n") + end})
		}
	}
	return s
}

func show(q *report.Record, a answer) string {
	opt := func(p *int) string {
		if p == nil {
			return "–"
		}
		return fmt.Sprint(*p)
	}
	dur := func(p *report.Micros) string {
		if p == nil {
			return "–"
		}
		return time.Duration(*p).String()
	}
	var b strings.Builder
	state := "ok"
	if !q.OK {
		state = "failed, " + q.Failure + ": " + q.Error
	}
	fmt.Fprintf(&b, "%s\n", state)
	fmt.Fprintf(&b, "headers=%v first_byte=%v ttft=%v first_output=%s e2e=%v itl=%s end=%v\n", time.Duration(q.Headers), time.Duration(q.FirstByte), time.Duration(q.TTFT), dur(q.FirstOutput), time.Duration(q.E2E), dur(q.ITL), time.Duration(q.End))
	fmt.Fprintf(&b, "prompt=%s cached=%s completion=%s reasoning=%s chunks=%d finish=%s", opt(q.PromptTokens), opt(q.CachedTokens), opt(q.CompletionTokens), opt(q.ReasoningTokens), q.Deltas, q.Finish)
	if q.NoDone {
		b.WriteString(" no_done")
	}
	if len(q.Gaps) > 0 {
		b.WriteString(" gaps=")
		for i, g := range q.Gaps {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprint(&b, time.Duration(g))
		}
	}
	fmt.Fprintf(&b, "\ncontent=%q reasoning=%q\n", a.content, a.reasoning)
	if q.Worker+q.Speculation+q.RequestID != "" {
		fmt.Fprintf(&b, "worker=%s speculation=%s id=%s\n", q.Worker, q.Speculation, q.RequestID)
	}
	return b.String()
}

// TestTurn_ScriptedStreams: streams with known instants give exactly those times and
// counts.
func TestTurn_ScriptedStreams(t *testing.T) {
	script.RunDir(t, filepath.Join("testdata", "streams"), func(t *testing.T) func(*script.Cmd) string {
		return func(c *script.Cmd) (out string) {
			// A bubble of its own for each turn: time starts afresh.
			synctest.Test(t, func(t *testing.T) {
				endpoint := parseScript(t, c.Input)
				timeout, err := time.ParseDuration(c.String("timeout", "60s"))
				if err != nil {
					t.Fatal(err)
				}
				cfg := Config{URL: "http://endpoint", Model: "m", Users: 1, Turns: 1, UserTokens: 1, MaxCompletionTokens: 100, Transport: endpoint, Timeout: timeout}
				cl, err := newClient(&cfg)
				if err != nil {
					t.Fatal(err)
				}
				var q report.Record
				a := cl.turn(t.Context(), time.Now(), "m", "s", []goopenai.ChatCompletionMessage{{Role: "user", Content: "hi"}}, &q)
				out = show(&q, a)
			})
			return out
		}
	})
}
