package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	openai "github.com/sashabaranov/go-openai"
)

// TestServe_WarmsAWorkerBeforeItTakesRequests: over real sockets, a worker that comes under
// load holds the system prompt that everybody shares before its first request.
func TestServe_WarmsAWorkerBeforeItTakesRequests(t *testing.T) {
	late, err := startSimulated(1, ports{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- late.run(ctx) }() // owned by the test
	defer func() { cancel(); <-ended }()

	cfg := defaultConfig()
	cfg.Prefill.Mode = "on"
	s := startServer(t, 2, cfg, reloader{})
	eventually(t, "complete feeds", func() bool { return strings.Count(text(t, s.admin+"/debug/workers"), `"complete"`) >= 2 })

	system := strings.Repeat("You answer in one short sentence. ", 200)
	ask := func(user string) (worker string, cached int) {
		body, _ := json.Marshal(map[string]any{"model": "sim", "max_tokens": 2, "messages": []map[string]string{
			{"role": "system", "content": system}, {"role": "user", "content": user},
		}})
		resp, err := http.Post(s.api+"/v1/chat/completions", "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		var answer openai.ChatCompletionResponse
		if err != nil || resp.StatusCode != 200 || json.Unmarshal(raw, &answer) != nil {
			t.Errorf("%d %s %v", resp.StatusCode, raw, err)
			return
		}
		return resp.Header.Get("X-Warmroute-Worker"), answer.Usage.PromptTokensDetails.CachedTokens
	}
	// Work that the budget of join is a share of: long prompts with nothing in common but
	// the system prompt.
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for n := range 3 {
				ask(fmt.Sprintf("%d %d ", c, n) + strings.Repeat(fmt.Sprintf("line %d of client %d; ", n, c), 2500))
			}
		})
	}
	wg.Wait()
	debug := func() string { return text(t, s.admin+"/debug/prefill") }
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(debug(), text(t, s.admin+"/debug/workers"))
		}
	})
	eventually(t, "the head", func() bool { return strings.Contains(debug(), `"first_turns"`) })

	late.workers[0].ID = "late"
	if err := s.fleet.SetWorkers(append(s.simulated.workers[:2:2], late.workers...)); err != nil {
		t.Fatal(err)
	}
	joined := func() bool {
		m := text(t, s.admin+"/metrics")
		return strings.Contains(m, "warmroute_prefill_join_seconds_count 1") && strings.Contains(m, `warmroute_prefill_copies_total{outcome="warmed",reason="",trigger="join"} 1`)
	}
	eventually(t, "the join", joined)
	if strings.Contains(text(t, s.admin+"/readyz"), "warming") {
		t.Error("the worker is still warming")
	}
	found := -1
	for n := 0; n < 40 && found < 0; n++ {
		var wg sync.WaitGroup
		var mu sync.Mutex
		for c := range 4 {
			wg.Go(func() {
				if worker, cached := ask(fmt.Sprintf("question %d.%d", n, c)); worker == "late" {
					mu.Lock()
					defer mu.Unlock()
					if found < 0 {
						found = cached
					}
				}
			})
		}
		wg.Wait()
	}
	if found < 1000 {
		t.Errorf("the first request that went to the new worker found %d tokens cached", found)
	}
}
