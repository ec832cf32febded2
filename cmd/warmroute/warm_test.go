package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/sim"
)

// warmRig is a proxy with one simulated worker that has a real tokenizer and reasons.
type warmRig struct {
	t     *testing.T
	s     *server
	model *prompt.Model
	style prompt.Style
	turns int
}

const warmBlock = 16

func newWarmRig(t *testing.T, like sim.Personality) *warmRig {
	t.Helper()
	r := &warmRig{t: t, style: prompt.StyleOf(string(like))}
	var err error
	if r.model, err = prompt.LoadModel(qwen); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, sim.Config{
		Like: like, Model: r.model, Template: "thinking", ReasoningTokens: 400, ReplyTokens: 400, HealthDelay: time.Millisecond,
		Engine: sim.EngineConfig{BlockSize: warmBlock, Profile: sim.LinearProfile{Base: 200 * time.Microsecond, PerSeq: 1, PerKVToken: 1}},
	})
	r.s = overThinking(t, worker, func(*config) {})
	eventually(t, "a local tokenizer", func() bool {
		return strings.Contains(text(t, r.s.admin+"/metrics"), `warmroute_tokenizer_local{model="sim"} 1`)
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(text(t, r.s.admin+"/debug/prefill"))
		}
	})
	return r
}

// conversation is what a client that writes reasoning back has said and heard.
type conversation struct {
	rig      *warmRig
	warm     bool
	messages []string
}

const warmTools = `,"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}]`

func (c *conversation) body(choice string) string {
	return `{"model":"sim","max_tokens":3000,"messages":[` + strings.Join(c.messages, ",") + `]` + warmTools + `,"tool_choice":"` + choice + `"}`
}

// turn asks, appends the answer as the client writes it back and waits until a warm-up for
// the next turn is through. It returns the prompt's tokens and how many were cached.
func (c *conversation) turn(choice string) (prompt, cached int, call string) {
	t := c.rig.t
	t.Helper()
	req, err := http.NewRequest("POST", c.rig.s.api+"/v1/chat/completions", strings.NewReader(c.body(choice)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Speculative-Prefill", strconv.FormatBool(c.warm))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a struct {
		Choices []struct {
			Message struct {
				Content          *string           `json:"content"`
				Reasoning        string            `json:"reasoning"`
				ReasoningContent string            `json:"reasoning_content"`
				Calls            []json.RawMessage `json:"tool_calls"`
			}
		}
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(resp.Body); err != nil || resp.StatusCode != 200 || json.Unmarshal(raw.Bytes(), &a) != nil {
		t.Fatalf("%d %s %v", resp.StatusCode, raw.String(), err)
	}
	m := a.Choices[0].Message
	echo := map[string]any{"role": "assistant", "content": m.Content}
	if m.Reasoning+m.ReasoningContent == "" {
		t.Fatalf("no reasoning: %s", raw.String())
	}
	if m.Reasoning != "" {
		echo["reasoning"] = m.Reasoning
	} else {
		echo["reasoning_content"] = m.ReasoningContent
	}
	if len(m.Calls) > 0 {
		echo["tool_calls"] = m.Calls
		var id struct{ ID string }
		_ = json.Unmarshal(m.Calls[0], &id)
		call = id.ID
	}
	b, _ := json.Marshal(echo)
	c.messages = append(c.messages, string(b))
	if c.warm {
		c.rig.turns++
		c.rig.s.warmed(t, c.rig.turns)
	}
	return a.Usage.Prompt, a.Usage.Details.Cached, call
}

// user appends a message and returns how many tokens of the prompt can be warmed: whole
// blocks before the new text.
func (c *conversation) user(text string) (warmable int) {
	var prompts [2][]uint32
	for i, t := range []string{text, "Zebra " + text} {
		prompts[i], _ = c.rig.model.Tokenize(openai.Chat, []byte((&conversation{messages: append(c.messages[:len(c.messages):len(c.messages)], fmt.Sprintf(`{"role":"user","content":%q}`, t))}).body("none")), c.rig.style)
	}
	n := 0
	for n < len(prompts[0]) && n < len(prompts[1]) && prompts[0][n] == prompts[1][n] {
		n++
	}
	c.messages = append(c.messages, fmt.Sprintf(`{"role":"user","content":%q}`, text))
	return n / warmBlock * warmBlock
}

// TestServe_WarmsAllThatCanBe: of a reasoning model's next turn every whole block before the
// new text is cached, and of one after three tool steps nearly all of the prompt, by token
// ids that were a true prefix each time.
func TestServe_WarmsAllThatCanBe(t *testing.T) {
	for _, like := range []sim.Personality{sim.VLLM, sim.SGLang} {
		t.Run(string(like), func(t *testing.T) {
			r := newWarmRig(t, like)
			c := &conversation{rig: r, warm: true}
			c.user(strings.Repeat("what do you know of prefixes? ", 20))
			c.turn("none")
			for i := range 3 {
				warmable := c.user(fmt.Sprintf("and what of number %d, my friend?", i))
				prompt, cached, _ := c.turn("none")
				t.Logf("turn %d: %d of %d warmable tokens cached, prompt %d", i+2, cached, warmable, prompt)
				if float64(cached) < 0.98*float64(warmable) {
					t.Errorf("%d of %d warmable tokens are cached", cached, warmable)
				}
			}
			for _, warm := range []bool{false, true} {
				c := &conversation{rig: r, warm: warm}
				c.user(fmt.Sprintf("warm %t: look it up, please", warm))
				for range 3 {
					_, _, call := c.turn("required")
					c.messages = append(c.messages, fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%q}`, call, strings.Repeat("the old red box and its ten cats; ", 30)))
				}
				c.turn("none")
				c.user("thank you!")
				prompt, cached, _ := c.turn("none")
				t.Logf("after three tool steps, warm %t: %d of %d prompt tokens cached", warm, cached, prompt)
				if share := float64(cached) / float64(prompt); warm && share < 0.9 || !warm && share > 0.3 {
					t.Errorf("warm %t: %.0f %% of the prompt is cached", warm, 100*share)
				}
			}
			m := r.s.scrape(t) // tokens that come too late make a chat of a warm-up
			if ids, all := m[`warmroute_prefill_form_total{form="tokens"}`], sum(m, "warmroute_prefill_form_total"); all < 5 || ids < 1 {
				t.Errorf("%g warm-ups of token ids, %g in all", ids, all)
			}
			if n, all := m[`warmroute_prefill_prefix_total{result="true",where=""}`], sum(m, "warmroute_prefill_prefix_total"); n < 1 || sum(m, `warmroute_prefill_prefix_total{result="false"`) != 0 {
				t.Errorf("%g true prefixes of %g", n, all)
			}
		})
	}
}
