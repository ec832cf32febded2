package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/bench/report"
)

// Hint is what a request says about speculative prefill.
type Hint int

// The hints: nothing, X-Speculative-Prefill: true with nvext.agent_hints, or
// X-Speculative-Prefill: false, which also overrules an endpoint that warms by itself.
const (
	HintNone Hint = iota
	HintOn
	HintOff
)

// Config describes one run. Users, Turns, UserTokens and MaxCompletionTokens must be set.
type Config struct {
	// URL is the endpoint's base, with or without /v1.
	URL string
	// APIKey is sent as bearer token where it is set.
	APIKey string
	// Model is the served model; "" asks /v1/models, which must then list one.
	Model string
	// Header is sent with every request.
	Header http.Header
	// ExtraBody is a JSON object whose fields are added to each chat request, or replace
	// what the client would send; null removes a field. "" adds nothing.
	ExtraBody string

	// Users is the number of conversations, all open at once; Turns is the number of
	// turns of each.
	Users, Turns int
	// UserTokens is about the length of each user message, at 0.8 words a token.
	UserTokens int
	// MaxCompletionTokens bounds each answer.
	MaxCompletionTokens int
	// MeanDelay is the mean of the exponential think time before each turn but the
	// first; 0 sends the next turn at once.
	MeanDelay time.Duration
	// Stagger is the time over which the users start, evenly; 0 starts all at once, so
	// that the first second measures a burst.
	Stagger time.Duration
	// IgnoreEOS asks for answers of exactly MaxCompletionTokens (vLLM, SGLang).
	IgnoreEOS bool
	// EchoReasoning sends reasoning back in the history, as agents do that keep it.
	EchoReasoning bool
	// ToolSteps makes each turn a tool loop: so many times the model must call a tool
	// (tool_choice "required"), whose answer of UserTokens comes ToolDelay later; then it
	// may not. A turn's measures are those of its first request. 0: no tools.
	ToolSteps int
	// ToolDelay is what the tool takes.
	ToolDelay time.Duration
	// Seed decides texts and think times.
	Seed uint64
	// Salt opens every conversation; "" draws a fresh one.
	Salt string
	// Hint is sent with each turn.
	Hint Hint
	// SessionHeader carries the conversation's id; default X-Session-ID, "-" sends none.
	SessionHeader string
	// Timeout bounds one turn; default 5 minutes, as in Dynamo's client.
	Timeout time.Duration

	// Version is written to the results.
	Version string
	// Transport carries the requests; nil makes one with a connection a user.
	Transport http.RoundTripper
	// Now is the clock; nil is time.Now, whose differences are monotonic.
	Now func() time.Time
	// OnTurn, where set, hears of each turn that ended, one call at a time. It must not
	// keep the record.
	OnTurn func(*report.Record)
}

// maxTurns bounds the records of a run, about 400 bytes each.
const maxTurns = 2_000_000

// Ping makes c a smoke test: one user, one turn of about 50 tokens, no delay.
func (c *Config) Ping() {
	c.Users, c.Turns, c.UserTokens, c.MaxCompletionTokens = 1, 1, 50, 50
	c.MeanDelay, c.Stagger = 0, 0
}

// Validate names the first setting that makes no sense, as the command line spells it.
func (c *Config) Validate() error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--url %q: give the endpoint's base, such as http://localhost:8000", c.URL)
	}
	if u.User != nil {
		return errors.New("--url holds a password: use --api-key, which no result file shows")
	}
	for _, f := range []struct {
		name     string
		n, least int
	}{
		{"--num-users", c.Users, 1}, {"--num-turns", c.Turns, 1},
		{"--num-user-tokens", c.UserTokens, 1}, {"--max-completion-tokens", c.MaxCompletionTokens, 1},
	} {
		if f.n < f.least {
			return fmt.Errorf("%s %d: must be at least %d", f.name, f.n, f.least)
		}
	}
	if c.Users > maxTurns || c.Turns > maxTurns || c.Users*c.Turns*(1+max(c.ToolSteps, 0)) > maxTurns {
		return fmt.Errorf("--num-users %d × --num-turns %d: more than %d turns do not fit into memory", c.Users, c.Turns, maxTurns)
	}
	if c.UserTokens > 10_000_000 {
		return fmt.Errorf("--num-user-tokens %d: at most 10,000,000", c.UserTokens)
	}
	if c.ToolSteps < 0 || c.ToolSteps > 1000 {
		return fmt.Errorf("--tool-steps %d: 0 to 1000", c.ToolSteps)
	}
	if c.ToolDelay < 0 {
		return fmt.Errorf("--tool-delay %s: must not be negative", c.ToolDelay)
	}
	if c.MeanDelay < 0 {
		return fmt.Errorf("--mean-delay-ms %d: must not be negative", c.MeanDelay.Milliseconds())
	}
	if c.Stagger < 0 {
		return fmt.Errorf("--stagger %s: must not be negative", c.Stagger)
	}
	if c.Timeout < 0 {
		return fmt.Errorf("--timeout %s: must not be negative", c.Timeout)
	}
	if _, err := c.fields(); err != nil {
		return err
	}
	return nil
}

// base returns the URL that go-openai appends its paths to.
func (c *Config) base() string {
	u := strings.TrimRight(c.URL, "/")
	u = strings.TrimSuffix(u, "/chat/completions")
	if !strings.HasSuffix(u, "/v1") {
		u += "/v1"
	}
	return u
}

func (c *Config) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return 5 * time.Minute
}

func (c *Config) now() func() time.Time {
	if c.Now != nil {
		return c.Now
	}
	return time.Now
}

func (c *Config) sessionHeader() string {
	switch c.SessionHeader {
	case "":
		return "X-Session-ID"
	case "-":
		return ""
	}
	return c.SessionHeader
}

// field is one member of a JSON object; a nil value removes it.
type field struct {
	name  string
	value json.RawMessage
}

// fields returns the request fields that go-openai's types cannot say: temperature 0
// (omitted by its float), ignore_eos, the hint, and what ExtraBody adds or removes.
func (c *Config) fields() ([]field, error) {
	out := []field{{"temperature", json.RawMessage("0")}}
	if c.IgnoreEOS {
		out = append(out, field{"ignore_eos", json.RawMessage("true")})
	}
	if c.Hint == HintOn {
		out = append(out, field{"nvext", json.RawMessage(`{"agent_hints":{"speculative_prefill":true}}`)})
	}
	if c.ExtraBody == "" {
		return out, nil
	}
	var extra map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.ExtraBody), &extra); err != nil || extra == nil {
		return nil, fmt.Errorf("--extra-body is no JSON object: %v", err)
	}
	for name, value := range extra {
		switch name {
		case "messages", "stream", "stream_options", "n":
			return nil, fmt.Errorf("--extra-body sets %q, which the client sets itself", name)
		case "nvext":
			if c.Hint == HintOn {
				return nil, errors.New("--extra-body sets \"nvext\" and --speculative-prefill does too: put the hint into --extra-body, or use one of the two")
			}
		}
		if string(value) == "null" {
			value = nil
		}
		if i := slices.IndexFunc(out, func(f field) bool { return f.name == name }); i >= 0 {
			out[i].value = value
			continue
		}
		out = append(out, field{name, value})
	}
	slices.SortFunc(out, func(a, b field) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// workload describes c for the result file.
func (c *Config) workload(p *plan) report.Workload {
	return report.Workload{
		Users: c.Users, Turns: c.Turns, UserTokens: c.UserTokens, MaxCompletionTokens: c.MaxCompletionTokens,
		MeanDelay: report.Micros(c.MeanDelay), Stagger: report.Micros(c.Stagger),
		ToolSteps: c.ToolSteps, ToolDelay: report.Micros(c.ToolDelay),
		IgnoreEOS: c.IgnoreEOS, EchoReasoning: c.EchoReasoning, Seed: c.Seed, Extra: c.ExtraBody, Plan: p.hash,
	}
}
