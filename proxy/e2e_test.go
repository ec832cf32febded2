package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// canary is in every prompt of the end-to-end test and must never be seen elsewhere.
const canary = "CANARY-7f3a"

// whole is the whole product in one process: simulated engines with events over ZMQ,
// relays, an embedded NATS server, index, router and front.
type whole struct {
	*rig
	consumer *events.Consumer
	sims     []*sim.Server
}

// startWhole starts engines workers of one personality. model, where set, is the tokenizer
// and template of the workers; local then has the proxy make tokens itself.
func startWhole(t *testing.T, like sim.Personality, engines int, model *prompt.Model, local *prompt.Models) *whole {
	t.Helper()
	h := &whole{rig: &rig{t: t, logs: new(logBuffer), reg: prometheus.NewRegistry()}}
	log := slog.New(slog.NewJSONHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	var workers []upstream.WorkerConfig
	for i := range engines {
		s, err := sim.NewServer(sim.Config{Like: like, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", ReplyTokens: 24, Model: model,
			Engine: sim.EngineConfig{BlockSize: 16, SpeedUp: 50, Seed: uint64(i + 1)}})
		if err != nil {
			t.Fatal(err)
		}
		h.sims = append(h.sims, s)
		run(s.Run)
		c := upstream.WorkerConfig{ID: fmt.Sprintf("w%d", i+1), URL: s.URL(), Events: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)}
		workers = append(workers, c)
	}
	bus, err := events.OpenBus(events.BusConfig{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	set, numbers := index.NewSet(index.Config{}), new(kv.Workers)
	rt := router.New(router.Config{Index: set, Workers: numbers, Logger: log, Registerer: h.reg})
	if h.fleet, err = upstream.NewFleet(upstream.FleetConfig{Workers: workers, Router: rt, Bus: bus, Local: local, Prefix: "warmroute", Cluster: "default",
		Probe: 100 * time.Millisecond, Logger: log, Registerer: h.reg}); err != nil {
		t.Fatal(err)
	}
	if h.consumer, err = events.NewConsumer(events.ConsumerConfig{Local: bus.Local(), Prefix: "warmroute", Cluster: "default", Index: set, Workers: numbers,
		Resolve: h.fleet.Resolve, OnFeed: h.fleet.OnFeed, OnAnnouncement: h.fleet.OnAnnouncement, Logger: log, Registerer: h.reg}); err != nil {
		t.Fatal(err)
	}
	builder := prompt.New(prompt.Config{Deadline: 5 * time.Second, Models: local, Registerer: h.reg})
	if h.Server, err = New(Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Router: rt, Fleet: h.fleet, Prompt: builder,
		Consumer: h.consumer, Bus: bus, Logger: log, Registerer: h.reg, Gatherer: h.reg}); err != nil {
		t.Fatal(err)
	}
	run(h.fleet.Run)
	if local != nil {
		run(func(ctx context.Context) error { return local.Run(ctx, h.fleet.Styled) })
	}
	run(h.consumer.Run)
	run(h.Run)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		wg.Wait()
		builder.Close()
		bus.Close()
	})
	eventually(t, "every feed is complete", func() bool {
		complete := 0
		for _, s := range rt.Status() {
			if s.Healthy && s.Coverage == router.FeedComplete {
				complete++
			}
		}
		return complete == engines
	})
	return h
}

// chat sends one turn and returns the reply's text and who gave it.
func (h *whole) chat(messages []map[string]string, stream bool) (reply, worker string, cached int) {
	h.t.Helper()
	q := map[string]any{"model": "sim", "messages": messages, "max_tokens": 24, "stream": stream}
	if stream {
		q["stream_options"] = map[string]bool{"include_usage": true}
	}
	body, _ := json.Marshal(q)
	resp, err := http.Post("http://"+h.Addr().String()+pathChat, "application/json", bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		h.t.Fatalf("%d %v %s", resp.StatusCode, err, raw)
	}
	type answer struct {
		Choices []struct {
			Message, Delta struct{ Content string }
		}
		Usage *struct {
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	read := func(data []byte) {
		var a answer
		if err := json.Unmarshal(data, &a); err != nil {
			h.t.Fatalf("%v in %q", err, data)
		}
		for _, c := range a.Choices {
			reply += c.Message.Content + c.Delta.Content
		}
		if a.Usage != nil && a.Usage.Details != nil {
			cached = a.Usage.Details.Cached
		}
	}
	if !stream {
		read(raw)
		return reply, resp.Header.Get(headerWorker), cached
	}
	if !bytes.HasSuffix(raw, []byte("data: [DONE]\n\n")) {
		h.t.Fatalf("the stream ends with %.200q", raw[max(0, len(raw)-200):])
	}
	for line := range bytes.Lines(raw) {
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok && string(data) != "[DONE]" {
			read(data)
		}
	}
	return reply, resp.Header.Get(headerWorker), cached
}

// TestEndToEnd_TurnsReturnToTheirPrefix: the same test for both personalities. Engine
// tokens and events are exact, so each turn goes back to where its prefix is, and the
// engine agrees about what was cached. No prompt, reply or token is logged or counted.
func TestEndToEnd_TurnsReturnToTheirPrefix(t *testing.T) {
	for _, like := range []sim.Personality{sim.VLLM, sim.SGLang} {
		t.Run(fmt.Sprint(like), func(t *testing.T) {
			h := startWhole(t, like, 2, nil, nil)
			const conversations, turns = 4, 4
			history := make([][]map[string]string, conversations)
			home := make([]string, conversations)
			replies := map[string]bool{}
			hits, moved := 0, 0
			for turn := range turns {
				for i := range conversations {
					text := fmt.Sprintf("%s conversation %d turn %d. %s", canary, i, turn, strings.Repeat("Tell me more about it. ", 60))
					history[i] = append(history[i], map[string]string{"role": "user", "content": text})
					reply, worker, cached := h.chat(history[i], (turn+i)%2 == 0)
					if reply == "" || worker == "" {
						t.Fatalf("conversation %d turn %d: reply %q from %q", i, turn, reply, worker)
					}
					replies[reply] = true
					history[i] = append(history[i], map[string]string{"role": "assistant", "content": reply})
					if turn > 0 {
						if worker != home[i] {
							moved++
						}
						if cached > 0 {
							hits++
						}
					}
					home[i] = worker
					h.quiet()
				}
			}
			if moved > 0 || hits != conversations*(turns-1) {
				t.Errorf("%d turns moved, %d of %d found their prefix", moved, hits, conversations*(turns-1))
				for _, d := range h.cfg.Router.Decisions() {
					t.Logf("%s\n%s", d.Worker, d.Explain())
				}
			}
			sources := map[string]int{}
			for _, d := range h.cfg.Router.Decisions() {
				sources[d.PromptSource]++
			}
			if sources["engine"] != conversations*turns {
				t.Errorf("prompt sources: %v", sources)
			}
			if n := h.metric("warmroute_proxy_cached_tokens_total"); n == 0 {
				t.Error("no cached tokens were accounted")
			}
			if status, report := h.readiness(); status != 200 || report.Status != "ready" {
				t.Errorf("readiness: %+v", report)
			}
			h.settled()

			// Nothing of what was said may be seen anywhere else.
			shown, err := json.Marshal([]any{h.cfg.Router.Decisions(), h.fleet.Status(), h.consumer.Status()})
			if err != nil {
				t.Fatal(err)
			}
			families, err := h.reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			everything := h.logs.String() + string(shown) + fmt.Sprint(families)
			if strings.Contains(everything, canary) || strings.Contains(everything, "Tell me more") {
				t.Error("a prompt is in logs, metrics or debug pages")
			}
			for reply := range replies {
				if strings.Contains(everything, reply) {
					t.Error("a reply is in logs, metrics or debug pages")
				}
			}
		})
	}
}

// quiet waits until the index has what the engines stored.
func (h *whole) quiet() {
	h.t.Helper()
	eventually(h.t, "the index equals the engines", func() bool {
		for i, s := range h.sims {
			id := fmt.Sprintf("w%d", i+1)
			for _, st := range h.cfg.Router.Status() {
				if st.Worker == id && st.HeldBlocks.GPU != len(s.Truth(0)) {
					return false
				}
			}
		}
		return true
	})
}
