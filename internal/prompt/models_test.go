package prompt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// modelEngine is an engine's tokenizer endpoint with a model of its own.
type modelEngine struct {
	mu    sync.Mutex
	model *Model // nil: the endpoint is not there
	style Style
	calls int

	noChat bool                   // only completions are answered
	others map[Style]*modelEngine // engines of other styles
}

func (e *modelEngine) styled(s Style) Source {
	if other := e.others[s]; other != nil {
		return other
	}
	return e
}

func (e *modelEngine) Tokenize(_ context.Context, _ string, kind openai.Kind, body []byte) (Tokens, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	if e.model == nil || e.noChat && kind == openai.Chat {
		return Tokens{}, errors.New("no such endpoint")
	}
	ids, err := e.model.Tokenize(kind, body, e.style)
	return Tokens{IDs: ids}, err
}

func (e *modelEngine) asked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls
}

func (e *modelEngine) set(m *Model) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.model = m
}

// changed is a family with one piece of its chat template replaced.
func changed(t *testing.T, family, old, new string) *Model {
	t.Helper()
	dir := t.TempDir()
	m := loadFamily(t, family)
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		raw, err := os.ReadFile(filepath.Join(families, family, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source := m.tok.Config().ChatTemplates[0].Source
	if strings.Count(source, old) == 0 {
		t.Fatalf("the template has no %q:\n%s", old, source)
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(strings.Replace(source, old, new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := LoadModel(dir)
	if err != nil {
		t.Fatal(err)
	}
	out.Now = goldenNow
	return out
}

// useAtOnce makes a model usable without loading and comparing.
func (m *Models) useAtOnce(name string, model *Model, style Style) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servedLocked(name, style).use.Store(&usable{model: model, style: style})
}

// withModels runs Models in a bubble with an engine.
func withModels(t *testing.T, cfg ModelsConfig, e *modelEngine, f func(m *Models)) {
	synctest.Test(t, func(t *testing.T) {
		if cfg.Find == nil {
			cfg.Find = func(_ context.Context, ref string) (string, error) {
				if _, err := os.Stat(ref); err != nil {
					return "", errors.New("no files of it are here")
				}
				return ref, nil
			}
		}
		cfg.Now = goldenNow
		m := NewModels(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx, e.styled) }()
		f(m)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// ask builds the prompt of a small chat, with or without tools, and returns it.
func (m *Models) ask(t *testing.T, name string, tools bool) *kv.Prompt {
	t.Helper()
	b := New(Config{Models: m, Now: goldenNow})
	defer b.Close()
	body := `{"model":"m","messages":[{"role":"user","content":"Hello there"}]`
	if tools {
		body += `,"tools":[` + checkTool + `]`
	}
	var req openai.Request
	if err := openai.ParseRequest(openai.Chat, []byte(body+"}"), &req); err != nil {
		t.Fatal(err)
	}
	return b.Build(context.Background(), &req, []byte(body+"}"), nil, kv.Namespace{}, name)
}

func TestModels_AreUsedOnceTheyAreTheEngines(t *testing.T) {
	e := &modelEngine{model: loadFamily(t, "qwen3")}
	dir := filepath.Join(families, "qwen3")
	withModels(t, ModelsConfig{}, e, func(m *Models) {
		if p := m.ask(t, "m", false); p.Source != kv.SourceText {
			t.Errorf("source %v before anything is known", p.Source)
		}
		m.Offer("m", dir, StyleVLLM)
		m.Offer("m", dir, StyleVLLM)
		synctest.Wait()
		for _, tools := range []bool{false, true} {
			if p := m.ask(t, "m", tools); p.Source != kv.SourceLocal || p.Reason != "" || p.TokenCount != len(p.Tokens) {
				t.Errorf("source %v: %s", p.Source, p.Reason)
			}
		}
		if d := m.Describe("m"); !strings.Contains(d, "compared with the engine") {
			t.Errorf("%q", d)
		}
		calls := e.asked()
		if calls != len(checksOf(StyleVLLM)) {
			t.Errorf("%d calls of the engine for %d checks", calls, len(checksOf(StyleVLLM)))
		}
		time.Sleep(checkAgain + time.Second)
		if n := e.asked(); n != 2*calls {
			t.Errorf("%d calls after another round, want %d", n, 2*calls)
		}
		// The engine is restarted with another template; then it is right again.
		e.set(changed(t, "qwen3", "<|im_end|>", "<|im_end|> "))
		time.Sleep(checkAgain)
		if p := m.ask(t, "m", false); p.Source == kv.SourceLocal {
			t.Error("a drift was not noticed")
		}
		e.set(loadFamily(t, "qwen3"))
		time.Sleep(checkAgain)
		if p := m.ask(t, "m", false); p.Source != kv.SourceLocal {
			t.Errorf("source %v: %s", p.Source, p.Reason)
		}
		if len(m.Degraded()) != 0 {
			t.Errorf("%v", m.Degraded())
		}
	})
}

// TestModels_AWrongTemplateIsCaught: one changed character is found by the first
// comparison, said with the first differing token, and not used.
func TestModels_AWrongTemplateIsCaught(t *testing.T) {
	for _, c := range []struct {
		family, old, new string
		tools            bool // only requests with tools differ
	}{
		{"qwen3", "<|im_end|>", "<|im_end|> ", false},
		{"llama3", "<|end_header_id|>", "<|end_header_id|>.", false},
		{"gemma", "<end_of_turn>", "<end_of_turn>!", false},
		{"qwen3", "<tools>", "<tool>", true},
	} {
		e := &modelEngine{model: loadFamily(t, c.family)}
		withModels(t, ModelsConfig{}, e, func(m *Models) {
			m.Offer("m", changed(t, c.family, c.old, c.new).dir, StyleVLLM)
			synctest.Wait()
			if p := m.ask(t, "m", false); (p.Source == kv.SourceLocal) != c.tools {
				t.Errorf("%s %q: source %v: %s", c.family, c.old, p.Source, p.Reason)
			}
			p := m.ask(t, "m", true)
			if p.Source == kv.SourceLocal || !strings.Contains(p.Reason, "token ") {
				t.Errorf("%s %q with tools: source %v: %s", c.family, c.old, p.Source, p.Reason)
			}
			d := strings.Join(m.Degraded(), "; ")
			if !strings.Contains(d, "model m: ") || !strings.Contains(d, "here and") {
				t.Errorf("%s %q: degraded %q", c.family, c.old, d)
			}
		})
	}
}

func TestModels_WithoutAnEngineToAsk(t *testing.T) {
	e := &modelEngine{}
	withModels(t, ModelsConfig{Paths: map[string]string{"*": filepath.Join(families, "llama3")}}, e, func(m *Models) {
		m.Offer("m", "ignored/root", StyleVLLM)
		synctest.Wait()
		if p := m.ask(t, "m", true); p.Source != kv.SourceLocal {
			t.Errorf("source %v: %s", p.Source, p.Reason)
		}
		if d := m.Describe("m"); !strings.Contains(d, "not compared") || len(m.Degraded()) > 0 {
			t.Errorf("%q %v", d, m.Degraded())
		}
		e.set(changed(t, "llama3", "<|eot_id|>", "<|eot_id|>x")) // it comes up, and differs
		time.Sleep(tryAgain + time.Second)
		if p := m.ask(t, "m", false); p.Source == kv.SourceLocal {
			t.Error("a difference was not noticed")
		}
		e.set(nil) // and goes again: what was found holds
		time.Sleep(checkAgain + time.Second)
		if len(m.Degraded()) != 1 {
			t.Errorf("%v", m.Degraded())
		}
	})
}

func TestModels_FilesThatCannotBeHad(t *testing.T) {
	e := &modelEngine{}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "tokenizer.json"), []byte(`{"model":{"type":"Unigram"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	withModels(t, ModelsConfig{Paths: map[string]string{"set": "gone/away", "none": ""}}, e, func(m *Models) {
		m.Offer("set", "", StyleVLLM)
		m.Offer("found", "org/name", StyleVLLM)
		m.Offer("broken", broken, StyleVLLM)
		m.Offer("none", broken, StyleVLLM)
		m.Offer("bare", "sim", StyleVLLM)
		synctest.Wait()
		for name, want := range map[string]string{"set": "no files", "found": "no files", "broken": "Unigram", "none": "", "bare": ""} {
			if d := m.Describe(name); want == "" && d != "" || !strings.Contains(d, want) {
				t.Errorf("%s: %q", name, d)
			}
			if p := m.ask(t, name, false); p.Source != kv.SourceText || !strings.Contains(p.Reason, want) {
				t.Errorf("%s: source %v: %q", name, p.Source, p.Reason)
			}
		}
		// Only what somebody has set is worth an alarm.
		if d := m.Degraded(); len(d) != 1 || !strings.HasPrefix(d[0], "model set: ") {
			t.Errorf("%v", d)
		}
	})
}

func TestModels_NilHasNone(t *testing.T) {
	var m *Models
	m.Offer("m", "a/b", StyleVLLM)
	if u, why := m.of("m", new(openai.Request)); u != nil || why != "" || m.Describe("m") != "" || m.Degraded() != nil {
		t.Error("a nil Models has something")
	}
}

// TestLocal_ReasonsQuoteNothing: what a template raises may hold the prompt; the reason,
// which people and logs see, does not.
func TestLocal_ReasonsQuoteNothing(t *testing.T) {
	b := localBuilder(t, Config{}, "qwen3")
	m := changed(t, "qwen3", "{%- macro turn(role, body) -%}", "{{ raise_exception('no: ' ~ messages[0].content) }}{%- macro turn(role, body) -%}")
	b.cfg.Models.useAtOnce("qwen3", m, StyleVLLM)
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"CANARY"}]}`)
	var req openai.Request
	if err := openai.ParseRequest(openai.Chat, body, &req); err != nil {
		t.Fatal(err)
	}
	p := b.Build(context.Background(), &req, body, nil, kv.Namespace{}, "qwen3")
	if p.Source != kv.SourceText || !strings.Contains(p.Reason, "raises") || strings.Contains(p.Reason, "CANARY") {
		t.Errorf("source %v: %q", p.Source, p.Reason)
	}
}

// TestModels_AnotherPlaceOfTheSameModel: workers on several machines name the same model by
// paths of their own; the one that works is kept.
func TestModels_AnotherPlaceOfTheSameModel(t *testing.T) {
	e := &modelEngine{model: loadFamily(t, "qwen3")}
	withModels(t, ModelsConfig{}, e, func(m *Models) {
		for range 3 {
			m.Offer("m", filepath.Join(families, "qwen3"), StyleVLLM)
			synctest.Wait()
			m.Offer("m", "/models/on/another/machine", StyleVLLM)
			synctest.Wait()
		}
		if p := m.ask(t, "m", false); p.Source != kv.SourceLocal || e.asked() != len(checksOf(StyleVLLM)) {
			t.Errorf("source %v after %d calls: %s", p.Source, e.asked(), p.Reason)
		}
	})
}

// TestModels_WhatWasNotAskedProvesNothing: an engine that answers a part of the comparison
// does not take back the difference that was found.
func TestModels_WhatWasNotAskedProvesNothing(t *testing.T) {
	e := &modelEngine{model: changed(t, "qwen3", "<|im_end|>", "<|im_end|> ")}
	withModels(t, ModelsConfig{}, e, func(m *Models) {
		m.Offer("m", filepath.Join(families, "qwen3"), StyleVLLM)
		synctest.Wait()
		e.mu.Lock()
		e.noChat = true
		e.mu.Unlock()
		time.Sleep(checkAgain + tryAgain + time.Second)
		if p := m.ask(t, "m", false); p.Source == kv.SourceLocal || len(m.Degraded()) != 1 {
			t.Errorf("source %v, %v", p.Source, m.Degraded())
		}
	})
}
