package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	openai "github.com/sashabaranov/go-openai"
	"github.com/spf13/pflag"

	"github.com/warmroute/warmroute/internal/sim"
)

// syncBuffer is a log that the test reads while the server writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		<-tick.C
	}
}

// server is `serve` with n simulated workers on free ports.
type server struct {
	*parts
	api, admin string
	log        *syncBuffer
	stop       context.CancelFunc
	done       chan error
}

func startServer(t *testing.T, n int, cfg config, reload reloader) *server {
	t.Helper()
	cfg.Listen, cfg.Admin, cfg.Simulate = "127.0.0.1:0", "127.0.0.1:0", n
	simulated, err := startSimulated(n, ports{})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{log: &syncBuffer{}, done: make(chan error, 1)}
	registry := prometheus.NewRegistry()
	if s.parts, err = newParts(cfg, simulated, registry, registry, s.log); err != nil {
		t.Fatal(err)
	}
	s.api, s.admin = "http://"+s.front.Addr().String(), "http://"+s.front.AdminAddr().String()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() { s.done <- s.run(ctx, reload) }() // owned by the test: stopped and read below
	t.Cleanup(func() {
		cancel()
		if err := <-s.done; err != nil {
			t.Errorf("serve ended with %v", err)
		}
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	if cfg.TLS.Cert != "" {
		s.api = "https" + strings.TrimPrefix(s.api, "http")
	}
	eventually(t, "readiness", func() bool { return get(t, s.admin+"/readyz").StatusCode == 200 })
	return s
}

func get(t *testing.T, url string) *http.Response {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return r
}

func text(t *testing.T, url string) string {
	t.Helper()
	raw, _ := io.ReadAll(get(t, url).Body)
	return string(raw)
}

// TestServe_SaysWhereAndWhatIsOff: the log says where it listens, and which models of the
// configuration nobody serves.
func TestServe_SaysWhereAndWhatIsOff(t *testing.T) {
	cfg := defaultConfig()
	cfg.Tokens.Models = map[string]string{"simm": "", "sim": ""}
	cfg.Prefill.Models = map[string]string{"chat": "on"}
	cfg.Aliases = map[string]string{"gpt": "sim", "old": "other"}
	cfg.Auth.Keys = []keyConfig{{Name: "alice", SHA256: hashOf("a"), Models: []string{"sim", "gpt", "typo"}}}
	s := startServer(t, 1, cfg, reloader{})
	for _, want := range []string{
		"msg=listening api=" + s.api + " admin=" + s.admin + ` nats="embedded NATS"`,
		`did you mean sim" setting=tokenizer.models model=simm served=[sim]`, "setting=speculative_prefill.models model=chat",
		"setting=model_aliases.old model=other", `setting="models of the API key alice" model=typo`,
	} {
		eventually(t, want, func() bool { return strings.Contains(s.log.String(), want) })
	}
	if n := strings.Count(s.log.String(), "no worker serves a model"); n != 4 {
		t.Errorf("%d warnings", n)
	}
}

// TestServe_AnswersARealClient: the OpenAI client that our users have reads every answer,
// and the second turn finds its prefix.
func TestServe_AnswersARealClient(t *testing.T) {
	s := startServer(t, 2, defaultConfig(), reloader{})
	conf := openai.DefaultConfig("none")
	conf.BaseURL = s.api + "/v1"
	client := openai.NewClientWithConfig(conf)
	ctx := t.Context()

	models, err := client.ListModels(ctx)
	if err != nil || len(models.Models) != 1 || models.Models[0].ID != "sim" {
		t.Fatalf("models: %+v %v", models, err)
	}
	eventually(t, "complete feeds", func() bool { return strings.Count(text(t, s.admin+"/debug/workers"), `"complete"`) >= 2 })

	messages := []openai.ChatCompletionMessage{{Role: "user", Content: strings.Repeat("tell me more about prefixes ", 60)}}
	first, err := client.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "sim", Messages: messages, MaxCompletionTokens: 70})
	if err != nil || first.Usage.CompletionTokens != 70 {
		t.Fatalf("first turn: %+v %v", first.Usage, err)
	}
	messages = append(messages, first.Choices[0].Message, openai.ChatCompletionMessage{Role: "user", Content: "and then?"})
	stream, err := client.CreateChatCompletionStream(ctx, openai.ChatCompletionRequest{Model: "sim", Messages: messages, MaxCompletionTokens: 20,
		StreamOptions: &openai.StreamOptions{IncludeUsage: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var usage *openai.Usage
	var reply strings.Builder
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(chunk.Choices) > 0 {
			reply.WriteString(chunk.Choices[0].Delta.Content)
		}
		if chunk.Usage != nil {
			usage = chunk.Usage
		}
	}
	if reply.Len() == 0 || usage == nil || usage.PromptTokensDetails == nil {
		t.Fatalf("stream: %q %+v", reply.String(), usage)
	}
	if got := usage.PromptTokensDetails.CachedTokens; got < first.Usage.PromptTokens/64*64 {
		t.Errorf("second turn: %d tokens cached of %d, want the first prompt's %d", got, usage.PromptTokens, first.Usage.PromptTokens)
	}
	if out := s.log.String(); !strings.Contains(out, "warmroute is ready: 2 simulated workers") || !strings.Contains(out, s.api+"/v1/chat/completions") {
		t.Errorf("what to try is not printed:\n%s", out)
	}
}

// TestServe_ReloadsWorkers: a change of the file adds and removes workers; a broken file
// changes nothing and says why.
func TestServe_ReloadsWorkers(t *testing.T) {
	extra, err := startSimulated(1, ports{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- extra.run(ctx) }() // owned by the test
	defer func() { cancel(); <-ended }()

	path := filepath.Join(t.TempDir(), "warmroute.yaml")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("simulate: 1\n")
	given := pflag.NewFlagSet("", pflag.ContinueOnError)
	reload := newReloader(path, given)
	cfg, err := loadConfig(path, given)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, 1, cfg, reload)
	workers := func() string { return text(t, s.admin+"/debug/workers") }

	write(fmt.Sprintf("simulate: 1\nworkers: [{id: extra, url: %q}]\n", extra.workers[0].URL))
	eventually(t, "the new worker", func() bool { return strings.Contains(workers(), `"id": "extra"`) })
	write("simulate: 1\nworkerz: []\n")
	eventually(t, "the refusal", func() bool {
		return strings.Contains(s.log.String(), "reload refused") && strings.Contains(s.log.String(), "workerz")
	})
	if !strings.Contains(workers(), `"id": "extra"`) {
		t.Error("a broken file removed a worker")
	}
	write("simulate: 1\n")
	eventually(t, "the removal", func() bool { return !strings.Contains(workers(), `"id": "extra"`) })
}

// TestServe_PortInUse: the message names the address and the flag, and nothing hangs.
func TestServe_PortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg := defaultConfig()
	cfg.Admin = "127.0.0.1:0"
	cfg.Listen = ln.Addr().String()
	registry := prometheus.NewRegistry()
	_, err = newParts(cfg, &simulated{}, registry, registry, io.Discard)
	if err == nil || !strings.Contains(err.Error(), cfg.Listen) || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("error: %v", err)
	}
}

// startThinking runs a simulated worker that strips reasoning from the history, until the
// test ends.
func startThinking(t *testing.T, engine sim.EngineConfig) *sim.Server {
	t.Helper()
	return startWorker(t, sim.Config{Template: "thinking", ReasoningTokens: 200, ReplyTokens: 250, Engine: engine})
}

// startWorker runs a simulated worker that tells its KV events, until the test ends.
func startWorker(t *testing.T, cfg sim.Config) *sim.Server {
	t.Helper()
	cfg.Events, cfg.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	worker, err := sim.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }() // read by the cleanup
	t.Cleanup(func() { cancel(); <-ended })
	return worker
}

// TestServe_WarmsTheNextTurn: a thinking model's next turn finds the stripped history
// cached when the turn before asked for speculative prefill, and the answer says so.
func TestServe_WarmsTheNextTurn(t *testing.T) {
	s := overThinking(t, startThinking(t, sim.EngineConfig{}), func(*config) {})
	c := &client{t: t, api: s.api, hint: "true"}
	c.say(strings.Repeat("what do you know of prefixes? ", 40))
	s.warmed(t, 1)
	if r := c.say("go on"); r.state != "warmed" || r.cached < r.prompt-3*64 {
		t.Errorf("second turn: %+v; %s", r, text(t, s.admin+"/debug/prefill"))
	}
}

// TestStartSimulated_GivesPortsBack: when one worker's port is taken, those of the workers
// before it are free again, so that nothing listens there without an answer.
func TestStartSimulated_GivesPortsBack(t *testing.T) {
	for range 20 { // another process may take a neighbouring port first
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := taken.Addr().(*net.TCPAddr).Port - 1 // of the first worker; the second meets taken
		_, err = startSimulated(2, ports{http: port})
		taken.Close()
		if err == nil {
			t.Fatal("two workers were bound although one port is taken")
		}
		if !strings.Contains(err.Error(), "worker 2") {
			continue
		}
		again, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatalf("the first worker's port is still held: %v", err)
		}
		again.Close()
		return
	}
	t.Fatal("no free pair of ports in 20 tries")
}
