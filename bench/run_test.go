package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/bench/report"
)

// endpoint is an OpenAI endpoint in memory: it answers turn n of a conversation with
// "answer n" after 100 ms, and keeps the requests.
type endpoint struct {
	mu struct {
		sync.Mutex
		requests []request
	}
	fail  func(user string, turn int) string // SSE text sent instead after two deltas, "" for none
	delay time.Duration                      // to the first token; default 100 ms
}

type request struct {
	header http.Header
	body   map[string]any
	raw    string
}

func (e *endpoint) RoundTrip(req *http.Request) (*http.Response, error) {
	reply := func(contentType, body string, steps []step) *http.Response {
		if body != "" {
			steps = []step{{data: body}}
		}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Request: req,
			Body: &scriptedBody{req: req, start: time.Now(), steps: steps}}
	}
	if strings.HasSuffix(req.URL.Path, "/models") {
		return reply("application/json", `{"object":"list","data":[{"id":"base","object":"model"},{"id":"lora","parent":"base"}]}`, nil), nil
	}
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return nil, err
	}
	if int64(len(raw)) != req.ContentLength {
		return nil, fmt.Errorf("body of %d bytes with length %d", len(raw), req.ContentLength)
	}
	e.mu.Lock()
	e.mu.requests = append(e.mu.requests, request{req.Header.Clone(), body, string(raw)})
	e.mu.Unlock()
	turn := len(body["messages"].([]any))/2 - 1
	delay := e.delay
	if delay == 0 {
		delay = 100 * time.Millisecond
	}
	delta := func(s string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"` + s + `"}}]}` + "\n\n"
	}
	steps := []step{{at: delay, data: delta("answer")}, {at: delay + 10*time.Millisecond, data: delta(fmt.Sprintf(" %d", turn))}}
	ending := `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":2}}` + "\n\ndata: [DONE]\n\n"
	if e.fail != nil {
		if text := e.fail(req.Header.Get("X-Session-Id"), turn); text != "" {
			ending = text
		}
	}
	return reply("text/event-stream", "", append(steps, step{at: delay + 20*time.Millisecond, data: ending})), nil
}

func (e *endpoint) seen() []request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.requests
}

// messages returns the texts of a request's messages behind the system line, user texts
// cut to their first word.
func (q request) messages() (out []string) {
	for _, m := range q.body["messages"].([]any)[1:] {
		m := m.(map[string]any)
		text := m["content"].(string)
		if m["role"] == "user" {
			text, _, _ = strings.Cut(text, " ")
		}
		out = append(out, m["role"].(string)+": "+text)
	}
	return out
}

// TestRun_HistoryAndRequest: each turn carries the answers that really came, and the
// request is what the flags say.
func TestRun_HistoryAndRequest(t *testing.T) {
	f := func(change func(*Config), check func(q request)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			e := &endpoint{}
			cfg := Config{URL: "http://e/", Users: 1, Turns: 3, UserTokens: 50, MaxCompletionTokens: 7, MeanDelay: time.Second,
				Seed: 42, Salt: "cafe0001", Transport: e, APIKey: "k"}
			change(&cfg)
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if r.Successful != 3 {
				t.Fatalf("%d answered: %v", r.Successful, r.Failures)
			}
			p := newPlan(&cfg)
			word := func(i int) string { w, _, _ := strings.Cut(p.user(0).turns[i].text, " "); return w }
			last := e.seen()[2]
			want := []string{"user: " + word(0), "assistant: answer 0", "user: " + word(1), "assistant: answer 1", "user: " + word(2)}
			if d := cmp.Diff(want, last.messages()); d != "" {
				t.Error(d)
			}
			system := last.body["messages"].([]any)[0].(map[string]any)
			if !strings.HasPrefix(system["content"].(string), "[cafe0001] ") || system["role"] != "system" {
				t.Errorf("the system line does not begin with the salt: %v", system)
			}
			check(last)
		})
	}
	fields := func(q request) string {
		b := map[string]any{}
		for k, v := range q.body {
			if k != "messages" {
				b[k] = v
			}
		}
		out, _ := json.Marshal(b)
		return string(out)
	}
	want := func(t *testing.T, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(func(*Config) {}, func(q request) {
		want(t, fields(q), `{"max_completion_tokens":7,"model":"base","stream":true,"stream_options":{"include_usage":true},"temperature":0}`)
		want(t, q.header.Get("Authorization"), "Bearer k")
		want(t, q.header.Get("X-Session-Id"), "cafe0001-0")
		want(t, q.header.Get("X-Speculative-Prefill"), "")
	})
	f(func(c *Config) { c.Hint, c.IgnoreEOS, c.Model = HintOn, true, "m" }, func(q request) {
		want(t, fields(q), `{"ignore_eos":true,"max_completion_tokens":7,"model":"m","nvext":{"agent_hints":{"speculative_prefill":true}},"stream":true,"stream_options":{"include_usage":true},"temperature":0}`)
		want(t, q.header.Get("X-Speculative-Prefill"), "true")
	})
	f(func(c *Config) {
		c.Hint, c.SessionHeader = HintOff, "-"
		c.Header = http.Header{"X-Team": {"a"}}
		c.ExtraBody = `{"temperature":null,"max_completion_tokens":null,"max_tokens":9,"chat_template_kwargs":{"enable_thinking":false}}`
	}, func(q request) {
		want(t, fields(q), `{"chat_template_kwargs":{"enable_thinking":false},"max_tokens":9,"model":"base","stream":true,"stream_options":{"include_usage":true}}`)
		want(t, q.header.Get("X-Speculative-Prefill"), "false")
		want(t, q.header.Get("X-Session-Id"), "")
		want(t, q.header.Get("X-Team"), "a")
	})
}

// TestEdit_EmptyAnswerIsEchoed: an answer of reasoning alone goes into the history as
// empty content, not as a message without one.
func TestEdit_EmptyAnswerIsEchoed(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"say {\"role\":\"assistant\"}"},{"role":"assistant"}],"stream":true}`
	want := `{"model":"m","messages":[{"role":"user","content":"say {\"role\":\"assistant\"}"},{"role":"assistant","content":""}],"stream":true}`
	if got := string(edit([]byte(body), nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestRun_FailedTurnEndsItsConversation: a turn that fails after two deltas is counted,
// nothing of it reaches a later request, its conversation's later turns are dropped, and
// other conversations go on.
func TestRun_FailedTurnEndsItsConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{fail: func(session string, turn int) string {
			if strings.HasSuffix(session, "-1") && turn == 1 {
				return `data: {"error":{"message":"engine died"}}` + "\n\n"
			}
			return ""
		}}
		r, err := Run(t.Context(), Config{URL: "http://e", Users: 3, Turns: 4, UserTokens: 5, MaxCompletionTokens: 7, Transport: e})
		if err != nil {
			t.Fatal(err)
		}
		if r.Planned != 12 || r.Requests != 10 || r.Successful != 9 || r.Failed != 1 || r.Dropped != 2 || r.Failures["error event"] != 1 {
			t.Errorf("planned %d, sent %d, answered %d, failed %d %v, dropped %d", r.Planned, r.Requests, r.Successful, r.Failed, r.Failures, r.Dropped)
		}
		for _, q := range e.seen() {
			if q.header.Get("X-Session-Id") == r.Salt+"-1" && strings.Contains(q.raw, "answer 1") {
				t.Errorf("text of a failed turn is in a later request: %v", q.messages())
			}
		}
		if r.AggregateTTFT.Count != 9 {
			t.Errorf("TTFT of %d turns", r.AggregateTTFT.Count)
		}
	})
}

// TestRun_Interrupted: when the caller cancels, what was measured is reported; turns under
// way are cancelled, not failed.
func TestRun_Interrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2150*time.Millisecond)
		defer cancel()
		r, err := Run(ctx, Config{URL: "http://e", Model: "m", Users: 3, Turns: 4, UserTokens: 5, MaxCompletionTokens: 7, Transport: &endpoint{delay: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Interrupted || r.Successful != 6 || r.Failed != 0 || r.Cancelled != 3 || r.Dropped != 3 {
			t.Errorf("interrupted %v, answered %d, failed %d, cancelled %d, dropped %d", r.Interrupted, r.Successful, r.Failed, r.Cancelled, r.Dropped)
		}
	})
}

// TestRun_ThinkTimeAndLag: a turn is due its think time after the end of the one before,
// and is sent then.
func TestRun_ThinkTimeAndLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{URL: "http://e", Model: "m", Users: 4, Turns: 3, UserTokens: 5, MaxCompletionTokens: 7, MeanDelay: 3 * time.Second, Stagger: time.Second, Seed: 9, Transport: &endpoint{}}
		r, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		p := newPlan(&cfg)
		ends := map[int]report.Micros{}
		for _, q := range r.Records {
			due := report.Micros(p.user(q.User).start)
			if q.Turn > 0 {
				due = ends[q.User] + report.Micros(p.user(q.User).turns[q.Turn].think)
			}
			if q.Planned != due || q.Lag != 0 {
				t.Errorf("user %d turn %d: due %v, want %v; lag %v", q.User, q.Turn, time.Duration(q.Planned), time.Duration(due), time.Duration(q.Lag))
			}
			ends[q.User] = q.End
		}
	})
}

// TestFC88_StartUpIsNamed: 50 users without a ramp: the file says which share of the
// turns the first second holds; with a ramp, its turns are marked and left out of the
// steady figures.
func TestFC88_StartUpIsNamed(t *testing.T) {
	run := func(stagger time.Duration) (r *report.Run) {
		synctest.Test(t, func(t *testing.T) {
			var err error
			r, err = Run(t.Context(), Config{URL: "http://e", Model: "m", Users: 50, Turns: 12, UserTokens: 5, MaxCompletionTokens: 7,
				MeanDelay: 5 * time.Second, Stagger: stagger, Seed: 1, Transport: &endpoint{}})
			if err != nil {
				t.Fatal(err)
			}
		})
		return r
	}
	burst := run(0)
	if burst.FirstSecondShare < 1./12 || burst.Phases["ramp"] != 0 {
		t.Errorf("burst: first second %v, phases %v", burst.FirstSecondShare, burst.Phases)
	}
	ramped := run(10 * time.Second)
	if ramped.FirstSecondShare > .05 || ramped.Phases["ramp"] < 50 || ramped.SteadyTTFT == nil ||
		ramped.SteadyTTFT.Count != ramped.Phases["steady"] || ramped.Phases["ramp"]+ramped.Phases["steady"]+ramped.Phases["drain"] != 600 {
		t.Errorf("ramp: first second %v, phases %v", ramped.FirstSecondShare, ramped.Phases)
	}
	for r, want := range map[*report.Run]string{burst: "all users start at once (burst)", ramped: "users start over 10 s (ramp)"} {
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), want) || !strings.Contains(text.String(), "turns were due in the first second") {
			t.Errorf("the report does not say how it started:\n%s", text.String())
		}
	}
}

// TestFC91_ClockSteps: with a clock that is set back an hour in the middle of a run, the
// turn that it hits is left out and counted, and no interval is negative. With the real
// clock intervals are monotonic and nothing is lost.
func TestFC91_ClockSteps(t *testing.T) {
	run := func(now func() time.Time) (r *report.Run) {
		synctest.Test(t, func(t *testing.T) {
			var err error
			r, err = Run(t.Context(), Config{URL: "http://e", Model: "m", Users: 1, Turns: 5, UserTokens: 5, MaxCompletionTokens: 7, Transport: &endpoint{}, Now: now})
			if err != nil {
				t.Fatal(err)
			}
		})
		return r
	}
	reads := 0
	stepped := run(func() time.Time {
		reads++
		at := time.Now().Round(0) // no monotonic reading
		if reads > 14 {
			at = at.Add(-time.Hour)
		}
		return at
	})
	if stepped.ClockErrors == 0 || stepped.ClockErrors+stepped.Successful != 5 {
		t.Errorf("%d clock errors, %d answered of 5", stepped.ClockErrors, stepped.Successful)
	}
	for _, q := range stepped.Records {
		if q.TTFT < 0 || q.E2E < 0 || q.Lag < 0 {
			t.Errorf("negative interval: %+v", q)
		}
	}
	if s := stepped.AggregateTTFT; s != nil && s.Min < report.Micros(time.Millisecond) {
		t.Errorf("a TTFT of %v", time.Duration(s.Min))
	}
	if real := run(nil); real.ClockErrors != 0 || real.Successful != 5 {
		t.Errorf("real clock: %d errors, %d answered", real.ClockErrors, real.Successful)
	}
	if !strings.Contains((&Config{}).now()().String(), "m=") {
		t.Error("the default clock has no monotonic reading")
	}
}
