package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/bench/report"
)

// TestAB_Blocks: blocks run ABBA BAAB, each with the same texts and think times behind a
// salt of its own; the baseline says no to speculative prefill, the treatment yes.
func TestAB_Blocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		var order strings.Builder
		x, err := AB(t.Context(), ABConfig{
			Config: Config{URL: "http://e", Users: 2, Turns: 2, UserTokens: 20, MaxCompletionTokens: 7, MeanDelay: time.Second, Transport: e},
			Pairs:  4,
			OnBlock: func(_, _ int, treatment bool) {
				if treatment {
					order.WriteString("B")
				} else {
					order.WriteString("A")
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if order.String() != "ABBABAAB" {
			t.Errorf("order %s", order.String())
		}
		if x.Result.Verdict != report.NoDifference || x.Model != "base" {
			t.Errorf("%s, model %s", x.Sentence(), x.Model)
		}
		salts := map[string]bool{}
		hints := map[string]int{}
		texts := map[string]int{}
		for _, q := range e.seen() {
			hints[q.header.Get("X-Speculative-Prefill")]++
			if got := q.body["nvext"] != nil; got != (q.header.Get("X-Speculative-Prefill") == "true") {
				t.Error("nvext and the header disagree")
			}
			all := q.body["messages"].([]any)
			system := all[0].(map[string]any)["content"].(string)
			salts[system[:10]] = true
			if len(all) == 2 {
				texts[all[1].(map[string]any)["content"].(string)]++
			}
		}
		if len(salts) != 8 || hints["true"] != 16 || hints["false"] != 16 {
			t.Errorf("%d salts, hints %v", len(salts), hints)
		}
		if len(texts) != 2 { // one of each user, in all blocks
			t.Errorf("first texts: %v", texts)
		}
		for i := range x.Blocks {
			for j, q := range x.Blocks[i].Records {
				if w := x.Blocks[0].Records[j]; q.Think != w.Think || q.User != w.User || q.Turn != w.Turn {
					t.Errorf("block %d turn %d differs: %v %v", i, j, q, w)
				}
			}
		}
	})
}

// TestAB_UsageMissing: an endpoint that says no token counts cannot be compared.
func TestAB_UsageMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{fail: func(string, int) string {
			return `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		}}
		x, err := AB(t.Context(), ABConfig{Config: Config{URL: "http://e", Model: "m", Users: 1, Turns: 2, UserTokens: 5, MaxCompletionTokens: 7, Transport: e}, Pairs: 3})
		if err != nil {
			t.Fatal(err)
		}
		if x.Result.Verdict != report.NotComparable || !strings.Contains(x.Result.Reason, "missing usage") {
			t.Error(x.Sentence())
		}
	})
}

// TestAB_Interrupted: the complete pairs are judged, and too few of them say so.
func TestAB_Interrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		x, err := AB(ctx, ABConfig{
			Config: Config{URL: "http://e", Model: "m", Users: 1, Turns: 2, UserTokens: 5, MaxCompletionTokens: 7, Transport: &endpoint{}},
			Pairs:  3,
			OnBlock: func(i, _ int, _ bool) {
				if i == 3 {
					time.AfterFunc(150*time.Millisecond, cancel)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if !x.Interrupted || len(x.Blocks) != 4 || !strings.Contains(x.Sentence(), "1 complete pairs of blocks, at least 3 are needed: the run was interrupted") {
			t.Errorf("%d blocks: %s", len(x.Blocks), x.Sentence())
		}
	})
}

// metered is an endpoint with a proxy's /metrics beside it.
type metered struct {
	endpoint
	text func() string
}

func (m *metered) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(req.URL.Path, "/metrics") {
		return m.endpoint.RoundTrip(req)
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Request: req, Body: io.NopCloser(strings.NewReader(m.text()))}, nil
}

// TestAB_Metrics: what warm-ups cost comes from the proxy's counters, block by block, and
// the next block waits for those under way.
func TestAB_Metrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &metered{}
		treatment, sent, busy := false, 0.0, time.Time{}
		m.text = func() string {
			inflight := 0
			if time.Now().Before(busy) {
				inflight = 1
			}
			return fmt.Sprintf("# HELP x y\nother_total 5\nwarmroute_prefill_tokens_total{kind=\"sent\"} %v\nwarmroute_prefill_tokens_total{kind=\"used\"} 7\nwarmroute_prefill_inflight %d\nwarmroute_prefill_queue 0\n", sent, inflight)
		}
		waited := time.Duration(0)
		ended := time.Time{}
		x, err := AB(t.Context(), ABConfig{
			Config: Config{URL: "http://e", Model: "m", Users: 1, Turns: 2, UserTokens: 5, MaxCompletionTokens: 7, Transport: m,
				OnTurn: func(q *report.Record) {
					ended = time.Now()
					if treatment {
						sent += 50
						busy = time.Now().Add(2500 * time.Millisecond)
					}
				}},
			Pairs: 3, MetricsURL: "http://proxy/metrics",
			OnBlock: func(_, _ int, b bool) {
				if treatment {
					waited = max(waited, time.Since(ended))
				}
				treatment = b
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if x.Result.ExtraPrefill == nil || *x.Result.ExtraPrefill != 300 {
			t.Errorf("extra prefill %v", x.Result.ExtraPrefill)
		}
		want := map[string]float64{`warmroute_prefill_tokens_total{kind="sent"}`: 300, `warmroute_prefill_tokens_total{kind="used"}`: 0}
		if d := cmp.Diff(want, x.Result.B.Counters); d != "" {
			t.Error(d)
		}
		if x.Result.A.Counters[`warmroute_prefill_tokens_total{kind="sent"}`] != 0 {
			t.Error("the baseline is charged for warm-ups")
		}
		if waited < 2500*time.Millisecond || waited > 4*time.Second {
			t.Errorf("the block after a treatment began %v after its last turn", waited)
		}
		m.text = func() string { return "other_total 5\n" }
		_, err = AB(t.Context(), ABConfig{Config: Config{URL: "http://e", Model: "m", Users: 1, Turns: 2, UserTokens: 5, MaxCompletionTokens: 7, Transport: m}, MetricsURL: "http://proxy/metrics"})
		if err == nil || !strings.Contains(err.Error(), "admin address") {
			t.Errorf("metrics of something else: %v", err)
		}
	})
}

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics(strings.NewReader(`# TYPE warmroute_prefill_outcomes_total counter
warmroute_prefill_outcomes_total{outcome="used",reason=""} 3
warmroute_prefill_outcomes_total{outcome="skipped",reason="a } \" b"} 4 1700000000000
warmroute_prefill_duration_seconds_bucket{le="0.025"} 1
warmroute_prefill_duration_seconds_sum 1.5e-2
warmroute_prefill_inflight 0
warmroute_prefill_broken{x="y
warmroute_prefill_broken
warmroute_router_x 1
`))
	want := map[string]float64{
		`warmroute_prefill_outcomes_total{outcome="used",reason=""}`:            3,
		`warmroute_prefill_outcomes_total{outcome="skipped",reason="a } \" b"}`: 4,
		"warmroute_prefill_duration_seconds_sum":                                0.015,
		"warmroute_prefill_inflight":                                            0,
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	grown := growth(map[string]float64{"warmroute_prefill_duration_seconds_sum": 1, "a_total": 5}, map[string]float64{"a_total": 2, "b_total": 1, "c": 9, "warmroute_prefill_duration_seconds_sum": 1.5})
	if d := cmp.Diff(map[string]float64{"a_total": 2, "b_total": 1, "warmroute_prefill_duration_seconds_sum": .5}, grown); d != "" {
		t.Error(d)
	}
}

func TestConfig_BadInput(t *testing.T) {
	f := func(change func(*ABConfig), want string) {
		t.Helper()
		c := ABConfig{Config: Config{URL: "http://h", Users: 1, Turns: 2, UserTokens: 1, MaxCompletionTokens: 1}}
		change(&c)
		err := c.Validate()
		switch {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v lacks %q", err, want)
		}
	}
	f(func(*ABConfig) {}, "")
	f(func(c *ABConfig) { c.URL = "localhost:8000" }, "http://localhost:8000")
	f(func(c *ABConfig) { c.URL = "http://u:p@h" }, "--api-key")
	f(func(c *ABConfig) { c.Users = 0 }, "--num-users")
	f(func(c *ABConfig) { c.Users = 1 << 40 }, "memory")
	f(func(c *ABConfig) { c.Users, c.Turns, c.Pairs = 1000, 100, 50 }, "--pairs 50")
	f(func(c *ABConfig) { c.UserTokens = 1 << 40 }, "--num-user-tokens")
	f(func(c *ABConfig) { c.Turns = 1 }, "at least 2")
	f(func(c *ABConfig) { c.UserTokens = -1 }, "--num-user-tokens")
	f(func(c *ABConfig) { c.MaxCompletionTokens = 0 }, "--max-completion-tokens")
	f(func(c *ABConfig) { c.MeanDelay = -1 }, "--mean-delay-ms")
	f(func(c *ABConfig) { c.Stagger = -1 }, "--stagger")
	f(func(c *ABConfig) { c.Pairs = 2 }, "--pairs 2")
	f(func(c *ABConfig) { c.Settle = -1 }, "--settle")
	f(func(c *ABConfig) { c.MetricsURL = ":8001" }, "--metrics-url")
	f(func(c *ABConfig) { c.ExtraBody = "[1]" }, "--extra-body")
	f(func(c *ABConfig) { c.ExtraBody = `{"messages":[]}` }, "messages")
	f(func(c *ABConfig) { c.ExtraBody, c.Hint = `{"nvext":{}}`, HintOn }, "nvext")
	for url, want := range map[string]string{"http://h": "http://h/v1", "http://h/v1/": "http://h/v1", "http://h/api/v1/chat/completions": "http://h/api/v1"} {
		if got := (&Config{URL: url}).base(); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}

// TestPlan: the plan depends on the seed and not on the salt, and its hash on all of it.
func TestPlan(t *testing.T) {
	c := Config{Users: 200, Turns: 5, UserTokens: 100, MaxCompletionTokens: 10, MeanDelay: 5 * time.Second, Seed: 42}
	p, q := newPlan(&c), newPlan(&c)
	if p.hash != q.hash {
		t.Error("one seed, two plans")
	}
	salted := c
	salted.Salt, salted.Hint, salted.URL = "x", HintOn, "http://other"
	if newPlan(&salted).hash != p.hash {
		t.Error("salt, hint or URL are in the plan")
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Seed++ }, func(c *Config) { c.Users-- }, func(c *Config) { c.Turns++ }, func(c *Config) { c.UserTokens += 10 },
		func(c *Config) { c.MaxCompletionTokens++ }, func(c *Config) { c.MeanDelay++ }, func(c *Config) { c.Stagger = time.Second },
		func(c *Config) { c.IgnoreEOS = true }, func(c *Config) { c.ExtraBody = `{"a":1}` },
	} {
		d := c
		change(&d)
		if newPlan(&d).hash == p.hash {
			t.Errorf("%+v has the plan of %+v", d, c)
		}
	}
	var sum time.Duration
	n := 0
	for i := range c.Users {
		u := p.user(i)
		if u.turns[0].think != 0 {
			t.Error("a think time before the first turn")
		}
		for _, turn := range u.turns[1:] {
			sum, n = sum+turn.think, n+1
			if w := len(strings.Fields(turn.text)); w != 80 {
				t.Fatalf("%d words for 100 tokens", w)
			}
		}
	}
	if mean := sum / time.Duration(n); mean < 4500*time.Millisecond || mean > 5500*time.Millisecond {
		t.Errorf("mean think time %v of %d", mean, n)
	}
}
