package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/sim"
)

const tokenizers = "../internal/tokenizer/testdata/"

// TestEndToEnd_LocalTokens: the proxy makes the workers' tokens itself. It finds every
// block that the engine finds and asks no engine for tokens once they are compared.
func TestEndToEnd_LocalTokens(t *testing.T) {
	for _, family := range []string{"qwen3", "llama3", "gemma"} {
		for _, like := range []sim.Personality{sim.VLLM, sim.SGLang} {
			t.Run(fmt.Sprint(family, "/", like), func(t *testing.T) {
				model, err := prompt.LoadModel(tokenizers + family)
				if err != nil {
					t.Fatal(err)
				}
				find := func(_ context.Context, ref string) (string, error) { return ref, nil }
				local := prompt.NewModels(prompt.ModelsConfig{Find: find})
				h := startWhole(t, like, 2, model, local)
				eventually(t, "the model is compared", func() bool { return strings.Contains(local.Describe("sim"), "compared with the engine") })
				asked := h.metric("warmroute_upstream_tokenize_total")
				if asked == 0 {
					t.Error("nothing was compared")
				}
				const conversations, turns = 3, 4
				history := make([][]map[string]string, conversations)
				found := 0
				for turn := range turns {
					for i := range conversations {
						text := fmt.Sprintf("conversation %d turn %d. %s", i, turn, strings.Repeat("Tell me more, naïvely: 你好!\n", 20))
						history[i] = append(history[i], map[string]string{"role": "user", "content": text})
						reply, _, cached := h.chat(history[i], (turn+i)%2 == 0)
						history[i] = append(history[i], map[string]string{"role": "assistant", "content": reply})
						d := h.cfg.Router.Decisions()[0]
						if d.PromptSource != "local" || d.OverlapTokens != cached {
							t.Errorf("conversation %d turn %d: source %s, overlap %d, the engine had %d", i, turn, d.PromptSource, d.OverlapTokens, cached)
						}
						found += cached
						h.quiet()
					}
				}
				if found == 0 {
					t.Error("nothing was ever cached")
				}
				if n := h.metric("warmroute_upstream_tokenize_total"); n != asked {
					t.Errorf("the engine was asked for tokens %v times", n-asked)
				}
				if _, report := h.readiness(); report.Status != "ready" {
					t.Errorf("%+v", report)
				}
			})
		}
	}
}

// TestEndToEnd_NoTokenizerFiles: that is said once, and prompts have the engine's tokens.
func TestEndToEnd_NoTokenizerFiles(t *testing.T) {
	logs := new(logBuffer)
	find := func(context.Context, string) (string, error) { return "", fmt.Errorf("no such directory") }
	local := prompt.NewModels(prompt.ModelsConfig{Paths: map[string]string{"*": "/nowhere"}, Find: find, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	h := startWhole(t, sim.VLLM, 2, nil, local)
	eventually(t, "readiness names it", func() bool {
		status, report := h.readiness()
		return status == 200 && strings.Contains(strings.Join(report.Reasons, ""), "no such directory")
	})
	h.chat([]map[string]string{{"role": "user", "content": "hello"}}, false)
	if d := h.cfg.Router.Decisions()[0]; d.PromptSource != "engine" {
		t.Errorf("source %s", d.PromptSource)
	}
	if n := strings.Count(logs.String(), "no such directory"); n != 1 {
		t.Errorf("said %d times:\n%s", n, logs)
	}
}
