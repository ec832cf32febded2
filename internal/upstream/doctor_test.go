package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/sim"
)

// deadPort returns an address where nobody listens.
func deadPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// found lists the results of a diagnosis that are not ok, and demands words in their texts.
func found(t *testing.T, d *Diagnosis, want ...string) {
	t.Helper()
	var got []string
	for _, f := range d.Findings {
		if f.Text == "" || strings.Contains(f.Text, "\n") {
			t.Errorf("%s: %s has the text %q", d.Worker, f.Check, f.Text)
		}
		if f.Result != CheckOK {
			got = append(got, fmt.Sprintf("%s %s: %s", f.Result, f.Check, f.Text))
		}
	}
	failed := false
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) {
			t.Errorf("%s:\n got %s\nwant %s", d.Worker, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			return
		}
		head, words, _ := strings.Cut(want[i], ": ")
		if !strings.HasPrefix(got[i], head+": ") || !strings.Contains(got[i], words) {
			t.Errorf("%s:\n got %s\nwant %s", d.Worker, got[i], want[i])
		}
		failed = failed || strings.HasPrefix(want[i], CheckFail)
	}
	if d.Failed() != failed {
		t.Errorf("%s: failed %v", d.Worker, d.Failed())
	}
}

// TestDoctor_FindsWhatIsMissing over simulated engines with and without their flags, and
// servers that are something else.
func TestDoctor_FindsWhatIsMissing(t *testing.T) {
	t.Parallel() // it mostly waits
	engine := sim.EngineConfig{BlockSize: 16, SpeedUp: 1000}
	one := func(edit func(*sim.Config)) *sim.Server {
		c := sim.Config{Engine: engine, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"}
		edit(&c)
		return startSim(t, c)
	}
	full := one(func(*sim.Config) {})
	bare := one(func(c *sim.Config) { c.Events, c.Replay, c.HideCached = "", "", true })
	noTokens := one(func(c *sim.Config) { c.Replay, c.NoTokenize = "", true })
	quiet := one(func(c *sim.Config) { c.Replay = "" })
	other := one(func(c *sim.Config) { c.Events, c.Replay = "", "" })
	sglang := one(func(c *sim.Config) { c.Like, c.AdvertiseModel = sim.SGLang, "s" })
	sglangBare := one(func(c *sim.Config) {
		c.Like, c.AdvertiseModel, c.Replay, c.HideCached, c.Engine.BlockSize = sim.SGLang, "s", "", true, 1
	})
	dead := one(func(c *sim.Config) { c.Faults.Status = 500 })
	locked := one(func(c *sim.Config) { c.APIKey = "secret" })
	generic := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"g"}]}`, "/v1/chat/completions": `{"choices":[],"usage":{"prompt_tokens":5}}`})
	generic.Config.SetKeepAlivesEnabled(false)
	web := servePaths(t, map[string]string{"/": "hello"})

	cfg := func(id string, s *sim.Server) WorkerConfig { return WorkerConfig{ID: id, URL: s.URL()} }
	withFeed := func(id string, s *sim.Server) WorkerConfig {
		return WorkerConfig{ID: id, URL: s.URL(), Events: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)}
	}
	unfed := cfg("unfed", other)
	unfed.Events = quiet.EventsEndpoint(0)
	unreached := cfg("unreached", noTokens)
	unreached.Events = "tcp://" + deadPort(t)
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deaf.Close() })
	wrongReplay, deafReplay := withFeed("wrong-replay", one(func(*sim.Config) {})), withFeed("deaf-replay", one(func(*sim.Config) {}))
	wrongReplay.Replay, deafReplay.Replay = "tcp://"+deadPort(t), "tcp://"+deaf.Addr().String()
	list, err := Doctor(context.Background(), []WorkerConfig{
		wrongReplay, deafReplay, withFeed("full", full), cfg("bare", bare), unreached, unfed,
		cfg("sglang", sglang), cfg("sglang-bare", sglangBare), withFeed("dead", dead), cfg("locked", locked),
		{ID: "generic", URL: generic.URL}, {ID: "web", URL: web.URL}, {ID: "nobody", URL: "http://" + deadPort(t)},
	}, DoctorConfig{Generate: true})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"fail replay: connection refused"}, {"fail replay: replay_endpoint"}, // and nothing of the events
		{},
		{"fail cached tokens: --enable-prompt-tokens-details", "warn KV events: --kv-events-config"},
		{"warn tokens: 404", "fail KV events: connection refused"},
		{"fail KV events: tells nothing", "warn replay: replay_endpoint"},
		{"warn replay: replay_endpoint"}, // advertised, but the advertisement has no replay socket
		{"fail block size: --page-size 16", "fail cached tokens: --enable-cache-report", "warn replay: replay_endpoint"},
		{"fail generation: answers 500"},
		{"fail reach: set its api_key"},
		{"warn engine: neither", "warn cached tokens: no cached_tokens", "warn keep-alive: closes the connection"},
		{"fail reach: /v1/models answers 404"},
		{"fail reach: connection refused"},
	}
	for i := range list {
		found(t, &list[i], want[i]...)
	}
}

// TestDoctor_LocalTokens: the tokens made here are compared with the engine's by the check of
// serve, and the first difference is named.
func TestDoctor_LocalTokens(t *testing.T) {
	t.Parallel()
	model, err := prompt.LoadModel("../tokenizer/testdata/qwen3")
	if err != nil {
		t.Fatal(err)
	}
	w := WorkerConfig{ID: "w", URL: startSim(t, sim.Config{Model: model, Engine: sim.EngineConfig{BlockSize: 16, SpeedUp: 1000}}).URL()}
	mute := WorkerConfig{ID: "w", URL: startSim(t, sim.Config{Model: model, NoTokenize: true, NoRender: true}).URL()}
	dirs := func(_ context.Context, ref string) (string, error) {
		if _, err := os.Stat(ref); err != nil {
			return "", errors.New(ref + " is not there")
		}
		return ref, nil
	}
	for _, c := range []struct {
		name, path   string
		worker       WorkerConfig
		result, text string
	}{
		{"what the worker names", "", w, CheckOK, "local, compared with the engine: /"},
		{"another model's", "../tokenizer/testdata/llama3", w, CheckFail, "on the engine: give --model-path"},
		{"no files", "absent", w, CheckFail, "absent is not there"},
		{"nobody to ask", "", mute, CheckWarn, "not compared"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := DoctorConfig{Models: prompt.ModelsConfig{Find: dirs}}
			if c.path != "" {
				cfg.Models.Paths = map[string]string{"*": c.path}
			}
			list, err := Doctor(t.Context(), []WorkerConfig{c.worker}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(list[0].Findings, func(f Finding) bool { return f.Check == "local tokens" })
			if i < 0 {
				t.Fatal("not checked")
			}
			if f := list[0].Findings[i]; f.Result != c.result || !strings.Contains(f.Text, c.text) {
				t.Errorf("%s %s", f.Result, f.Text)
			}
		})
	}
}

// TestDoctor_NoGenerate makes no engine generate.
func TestDoctor_NoGenerate(t *testing.T) {
	t.Parallel() // it mostly waits
	s := servePaths(t, map[string]string{
		"/v1/models": vllmModels, "/version": `{"version":"0.9.2"}`, "/metrics": fmt.Sprintf(vllmMetrics, "False"), "/health": "",
		"/tokenize": `{"tokens":[1,2,3]}`,
	})
	same := servePaths(t, map[string]string{
		"/v1/models": strings.ReplaceAll(vllmModels, "/models/m", "/models/other"), "/version": `{"version":"0.9.2"}`,
		"/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "503", "/tokenize": `{"tokens":[1,2,4]}`,
	})
	list, err := Doctor(context.Background(), []WorkerConfig{{ID: "a", URL: s.URL}, {ID: "b", URL: same.URL}}, DoctorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	found(t, &list[0], "fail prefix caching: --enable-prefix-caching", "warn cached tokens: --no-generate", "warn KV events: --kv-events-config")
	found(t, &list[1], "fail health: /health answers 503", "warn cached tokens: --no-generate", "warn KV events: --kv-events-config", "warn same model: --served-model-name", "fail same tokens: --chat-template")
	if n := s.count("/v1/chat/completions") + s.count("/v1/completions"); n != 0 {
		t.Errorf("%d generations", n)
	}
	if _, err := Doctor(context.Background(), []WorkerConfig{{URL: "http://a"}, {URL: "http://a/v1"}}, DoctorConfig{}); err == nil {
		t.Error("one worker twice is accepted")
	}
}

// TestDoctor_ShortKeepAlive: a server that closes idle connections early is named.
func TestDoctor_ShortKeepAlive(t *testing.T) {
	t.Parallel() // it mostly waits
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			w.WriteHeader(404)
			return
		}
		_, _ = io.WriteString(w, `{"data":[{"id":"g"}]}`)
	}))
	s.Config.IdleTimeout = 100 * time.Millisecond
	s.Start()
	t.Cleanup(s.Close)
	list, err := Doctor(context.Background(), []WorkerConfig{{ID: "a", URL: s.URL}}, DoctorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	found(t, &list[0], "warn engine: neither", "warn cached tokens: --no-generate", "warn keep-alive: idle connections within")
}
