package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const qwen = "../../internal/tokenizer/testdata/qwen3"

func TestTokenize_TextAndRequest(t *testing.T) {
	out, err := execute("tokenize", "--model-path", qwen, "--text", "Hello, world! Hello, world!", "--block-size", "4", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got tokenized
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Prompt != "Hello, world! Hello, world!" || got.Count != len(got.Tokens) || got.Count < 8 || len(got.SequenceHashes) != got.Count/4 {
		t.Errorf("%+v", got)
	}
	salted, err := execute("tokenize", "--model-path", qwen, "--text", "Hello, world! Hello, world!", "--block-size", "4", "--json", "--cache-salt", "a")
	if err != nil || salted == out {
		t.Errorf("the salt changes nothing: %v", err)
	}

	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(`{"messages":[{"role":"user","content":"Hi"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	rendered, err := execute("tokenize", "--model-path", qwen, "--render", file)
	if err != nil || !strings.Contains(rendered, "<|im_start|>user\nHi<|im_end|>") {
		t.Errorf("%q %v", rendered, err)
	}
	table, err := execute("tokenize", "--model-path", qwen, file)
	if err != nil || !strings.Contains(table, "tokens") || !strings.Contains(table, `"<|im_start|>"`) {
		t.Errorf("%q %v", table, err)
	}
}

func TestTokenize_BadInput(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		out, err := execute(append([]string{"tokenize"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q; %s", args, err, want, out)
		}
	}
	f("--model-path is missing", "--text", "x")
	f("no directory on this machine", "--model-path", "nowhere", "--text", "x")
	f("hub", "--model-path", "org/nowhere", "--offline", "--text", "x")
	f("with the network allowed", "--model-path", "org/nowhere", "--offline", "--text", "x")
	f("two outputs", "--model-path", qwen, "--text", "x", "--json", "--render")
	f("two inputs", "--model-path", qwen, "--text", "", "file.json")
	f("is empty", "--model-path", qwen, os.DevNull)
	f("more than 64 MiB", "--model-path", qwen, "/dev/zero")
	f("is a directory", "--model-path", qwen, t.TempDir())
	f("--engine", "--model-path", qwen, "--engine", "tgi", "--text", "x")
	f("--block-size", "--model-path", qwen, "--block-size", "0", "--text", "x")
	f("--date", "--model-path", qwen, "--date", "tomorrow", "--text", "x")
	f("two inputs", "--model-path", qwen, "--text", "x", "file.json")
	f("one file", "--model-path", qwen, "a.json", "b.json")
	f("no such file", "--model-path", qwen, "missing.json")

	// What serve would leave to the engine is not shown as if it were exact.
	file := filepath.Join(t.TempDir(), "request.json")
	for fields, want := range map[string]string{
		`"chat_template":"x"`:                                "chat_template: the request brings its own",
		`"chat_template_kwargs":{"chat_template":"x"}`:       "chat_template_kwargs: chat_template",
		`"truncate_prompt_tokens":3`:                         "truncate_prompt_tokens: ",
		`"prompt":["a","b"]`:                                 "",
		`"tools":[{"type":"function"}],"tool_choice":"none"`: "tool_choice: ",
	} {
		if err := os.WriteFile(file, []byte(`{"messages":[{"role":"user","content":"Hi"}],`+fields+`}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if want != "" {
			f(want, "--model-path", qwen, file)
		} else if _, err := execute("tokenize", "--model-path", qwen, file); err != nil {
			t.Errorf("%s: %v", fields, err)
		}
	}
	if err := os.WriteFile(file, []byte(`{"prompt":["a","b"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	f("--render prints one prompt, the request has 2", "--model-path", qwen, "--render", file)
}

func TestTokenize_EveryPromptAndAnEmptyText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(`{"prompt":["Hello","a <b> \u00e9"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := execute("tokenize", "--model-path", qwen, "--json", file)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 2 {
		t.Fatalf("%q %v", out, err)
	}
	for i, want := range []string{"Hello", "a <b> é"} {
		var got tokenized
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil || got.Prompt != want || got.Count == 0 {
			t.Errorf("%s: %+v %v", lines[i], got, err)
		}
	}
	out, err = execute("tokenize", "--model-path", qwen, "--text", "", "--json")
	var got tokenized
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got.Prompt != "" || got.Count != 0 {
		t.Errorf("%q %v", out, err)
	}
}

// TestModelPath_RelativeIsShownAbsolute: what a worker says of its files means the same to
// whoever reads it elsewhere, and its model has a name that is no path.
func TestModelPath_RelativeIsShownAbsolute(t *testing.T) {
	m, err := loadModel(t.Context(), qwen, tokenizerConfig{Offline: true}, slog.New(slog.DiscardHandler))
	if err != nil || !filepath.IsAbs(m.Dir()) {
		t.Fatalf("%v %v", m, err)
	}
	for ref, want := range map[string]string{
		qwen: filepath.Base(m.Dir()), qwen + "/": filepath.Base(m.Dir()), m.Dir(): filepath.Base(m.Dir()), "Qwen/Qwen3-8B": "Qwen/Qwen3-8B", ".": "warmroute",
	} {
		if got := servedName(ref); got != want {
			t.Errorf("%s is served as %s, want %s", ref, got, want)
		}
	}
}
