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
	f("--engine", "--model-path", qwen, "--engine", "tgi", "--text", "x")
	f("--block-size", "--model-path", qwen, "--block-size", "0", "--text", "x")
	f("--date", "--model-path", qwen, "--date", "tomorrow", "--text", "x")
	f("two inputs", "--model-path", qwen, "--text", "x", "file.json")
	f("one file", "--model-path", qwen, "a.json", "b.json")
	f("no such file", "--model-path", qwen, "missing.json")
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
