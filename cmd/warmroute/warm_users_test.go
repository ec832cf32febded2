package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
)

// client is one user of a proxy over HTTP.
type client struct {
	t        *testing.T
	api, key string
	hint     string
	messages []string
}

// reply is what the client sees of an answer.
type reply struct {
	prompt, cached, output int
	state, remaining       string
}

// say sends a user's message and echoes the answer into the history, without reasoning.
func (c *client) say(user string) (r reply) {
	c.t.Helper()
	c.messages = append(c.messages, `{"role":"user","content":`+strconv.Quote(user)+`}`)
	req, err := http.NewRequest("POST", c.api+"/v1/chat/completions", strings.NewReader(`{"model":"sim","max_tokens":900,"messages":[`+strings.Join(c.messages, ",")+`]}`))
	if err != nil {
		c.t.Fatal(err)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	req.Header.Set("X-Speculative-Prefill", c.hint)
	req.Header.Set("X-Warmroute-Explain", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var a struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || json.Unmarshal(raw, &a) != nil {
		c.t.Fatalf("%d %s %v", resp.StatusCode, raw, err)
	}
	said, _ := json.Marshal(a.Choices[0].Message.Content)
	c.messages = append(c.messages, `{"role":"assistant","content":`+string(said)+`}`)
	return reply{a.Usage.Prompt, a.Usage.Details.Cached, a.Usage.Completion, resp.Header.Get("X-Warmroute-Speculation"), resp.Header.Get("X-Ratelimit-Remaining-Tokens")}
}

// scrape reads the values of all series of a /metrics page.
func (s *server) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(text(t, s.admin+"/metrics")))
	for lines.Scan() {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && lines.Text()[0] != '#' {
			if v, err := strconv.ParseFloat(lines.Text()[i+1:], 64); err == nil {
				out[lines.Text()[:i]] = v
			}
		}
	}
	return out
}

// overThinking starts a proxy over one simulated worker that strips reasoning.
func overThinking(t *testing.T, worker *sim.Server, change func(*config)) *server {
	t.Helper()
	cfg := defaultConfig()
	cfg.Prefill.Holdout = 0
	cfg.Workers = []workerConfig{{ID: "w", URL: worker.URL(), Events: worker.EventsEndpoint(0), Replay: worker.ReplayEndpoint(0)}}
	change(&cfg)
	s := startServer(t, 0, cfg, reloader{})
	eventually(t, "a complete feed", func() bool { return strings.Contains(text(t, s.admin+"/debug/workers"), `"complete"`) })
	return s
}

// sum adds up the series that begin with prefix.
func sum(metrics map[string]float64, prefix string) (total float64) {
	for series, v := range metrics {
		if strings.HasPrefix(series, prefix) {
			total += v
		}
	}
	return total
}

// warmed waits until so many turns have ended and no warm-up waits or is under way.
func (s *server) warmed(t *testing.T, turns int) {
	t.Helper()
	ended := false // before the page was asked for whose queue counts
	eventually(t, fmt.Sprint(turns, " turns and their warm-ups"), func() bool {
		m, before := s.scrape(t), ended
		ended = sum(m, "warmroute_prefill_turns_total") >= float64(turns)
		return before && m["warmroute_prefill_queue"] == 0
	})
}

// ofUsers tells whether a series counts what users did or how they fared. What was cached
// for them is what warming changes; times depend on the machine, so histograms count here
// by their number of values.
func ofUsers(series string) bool {
	name, _, _ := strings.Cut(series, "{")
	switch {
	case strings.HasPrefix(name, "warmroute_proxy_cached_tokens"), strings.HasSuffix(name, "_sum"), strings.HasSuffix(name, "_bucket"),
		strings.HasPrefix(name, "warmroute_proxy_connections"), strings.HasPrefix(name, "warmroute_proxy_inter_token"):
		return false
	case strings.HasPrefix(name, "warmroute_proxy_"):
		return true
	}
	switch name {
	case "warmroute_router_prompt_tokens_total", "warmroute_router_refusals_total", "warmroute_router_reported_prompt_tokens_total",
		"warmroute_router_actual_ttft_seconds_count", "warmroute_router_predicted_ttft_seconds_count",
		"warmroute_router_requests_inflight", "warmroute_router_inflight", "warmroute_router_queue_wait_seconds_count":
		return true
	}
	return false
}

// TestFC78_CountersOfUsersOverHTTP: ten turns of a limited tenant are ten turns, with
// warm-ups or without: in every counter of users, in what is left of the limits, in the
// usage that is billed.
func TestFC78_CountersOfUsersOverHTTP(t *testing.T) {
	var why []string
	run := func(hint string) (users map[string]float64, replies []reply, sent float64) {
		engine := sim.EngineConfig{Profile: sim.LinearProfile{PrefillRate: 4000, Base: time.Millisecond, PerSeq: time.Nanosecond, PerKVToken: time.Nanosecond}}
		s := overThinking(t, startThinking(t, engine), func(cfg *config) {
			cfg.Auth.Keys = []keyConfig{{Name: "alice", SHA256: hashOf("a"), TokensPerMinute: 1_000_000, RequestsPerMinute: 11, MaxInflight: 1}}
		})
		c := &client{t: t, api: s.api, key: "a", hint: hint}
		for i := range 10 {
			r := c.say(strings.Repeat(fmt.Sprint("what do you know of prefix ", i, "? "), 40))
			r.cached, r.state, r.remaining = 0, "", ""
			replies = append(replies, r)
			if hint == "true" {
				s.warmed(t, i+1)
			}
		}
		m := s.scrape(t)
		for series, n := range m {
			if strings.HasPrefix(series, "warmroute_prefill_outcomes_total") {
				why = append(why, fmt.Sprint(series, " ", n))
			}
		}
		sent = m[`warmroute_prefill_sent_total{trigger="turn"}`]
		maps.DeleteFunc(m, func(series string, _ float64) bool { return !ofUsers(series) })
		return m, replies, sent
	}
	off, plain, none := run("false")
	on, warm, sent := run("true")
	if none != 0 || sent < 5 {
		t.Errorf("%v warm-ups were sent without the hint, %v with it: %v", none, sent, why)
	}
	if len(off) < 20 {
		t.Errorf("only %d series count users", len(off))
	}
	for _, series := range slices.Sorted(maps.Keys(off)) {
		if off[series] != on[series] {
			t.Errorf("%s: %v without warm-ups, %v with them", series, off[series], on[series])
		}
	}
	for series := range on {
		if _, known := off[series]; !known {
			t.Errorf("%s appears with warm-ups", series)
		}
	}
	if !slices.Equal(plain, warm) {
		t.Errorf("usage %v, with warm-ups %v", plain, warm)
	}
}

// freePort returns an address that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestServe_NextTurnAtAnotherProxy: of two proxies on one NATS the second one takes the
// next turn; it knows that it was warmed, and the first one counts it as used.
func TestServe_NextTurnAtAnotherProxy(t *testing.T) {
	worker := startThinking(t, sim.EngineConfig{SpeedUp: 10})
	bus := freePort(t)
	a := overThinking(t, worker, func(cfg *config) { cfg.NATS.Listen = bus })
	b := overThinking(t, worker, func(cfg *config) { cfg.NATS.URL = "nats://" + bus })
	eventually(t, "the proxies hear each other", func() bool {
		return a.scrape(t)["warmroute_peers"] == 1 && b.scrape(t)["warmroute_peers"] == 1
	})
	c := &client{t: t, api: a.api, hint: "true"}
	c.say(strings.Repeat("what do you know of prefixes? ", 40))
	a.warmed(t, 1)
	eventually(t, "the other proxy's knowledge", func() bool { return b.scrape(t)["warmroute_prefill_peers_warm_ups"] == 1 })
	c.api = b.api
	r := c.say("go on")
	// What the owner told last may be of a moment at which the warm-up was under way.
	if r.state != "warmed" && r.state != "cancelled" || r.cached < r.prompt-3*64 {
		t.Errorf("the second turn: %+v", r)
	}
	eventually(t, "the owner's count", func() bool { return a.scrape(t)[`warmroute_prefill_outcomes_total{outcome="used",reason=""}`] == 1 })
	m, other := a.scrape(t), b.scrape(t)
	if m[`warmroute_prefill_meetings_total{role="heard"}`] != 1 || other[`warmroute_prefill_meetings_total{role="told"}`] != 1 || m["warmroute_prefill_open_tokens"] != 0 {
		t.Errorf("meetings: heard %v, told %v; %v tokens are open", m[`warmroute_prefill_meetings_total{role="heard"}`],
			other[`warmroute_prefill_meetings_total{role="told"}`], m["warmroute_prefill_open_tokens"])
	}
}
