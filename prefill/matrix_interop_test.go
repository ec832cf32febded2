//go:build interop

package prefill

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// published says what the models of published templates write; the first entry whose name
// is part of the template's holds. Where a format is not that of the model in every token,
// only the gain differs, never whether a prefix is true.
var published = []struct {
	name string
	family
}{
	{"gpt-oss", family{Tokenizer: "gptoss", Open: "<|channel|>analysis<|message|>", Close: "<|end|><|start|>assistant", Say: "<|channel|>final<|message|>",
		Call: " to=functions.NAME<|channel|>commentary json<|message|>ARGS<|call|>", End: "<|return|>", CallEnd: new(string)}},
	{"Ministral", family{Tokenizer: "tekken", Open: "[THINK]", Close: "[/THINK]", Call: "[TOOL_CALLS]NAME[ARGS]ARGS", End: "</s>"}},
	{"Mistral", family{Tokenizer: "tekken", Call: `[TOOL_CALLS][{"name": "NAME", "arguments": ARGS, "id": "ID"}]`, End: "</s>"}},
	{"mistral", family{Tokenizer: "tekken", Call: "[TOOL_CALLS]NAME[ARGS]ARGS", End: "</s>"}},
	{"gemma-4", family{Tokenizer: "gemma", Open: "<|channel>thought\n", Close: "<channel|>", Call: "<|tool_call>call:NAMEARGS<tool_call|>", End: "<turn|>",
		Kwargs: map[string]any{"enable_thinking": true}}},
	{"gemma", family{Tokenizer: "gemma", End: "<end_of_turn>"}},
	{"R1-Distill-Llama", family{Tokenizer: "llama3", Open: "<think>\n", Close: "\n</think>\n\n", Call: "NAMEARGS", End: "<｜end▁of▁sentence｜>"}},
	{"DeepSeek", family{Tokenizer: "deepseek_v3", Open: "<think>", Close: "</think>", Kwargs: map[string]any{"thinking": true},
		Call: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS<｜tool▁call▁end｜><｜tool▁calls▁end｜>", End: "<｜end▁of▁sentence｜>"}},
	{"lama", family{Tokenizer: "llama3", Call: `{"name": "NAME", "parameters": ARGS}`, End: "<|eot_id|>"}},
	{"functionary", family{Tokenizer: "llama3", Call: "<function=NAME>ARGS</function>", End: "<|eot_id|>"}},
	{"firefunction", family{Tokenizer: "llama3", Call: ` functools[{"name": "NAME", "arguments": ARGS}]`, End: "<|eot_id|>"}},
	{"Qwen2.5", hermes}, {"Qwen3-Coder", hermes}, {"Phi-3.5", hermes}, {"LFM2-8B", hermes}, {"Kimi-K2-Instruct", hermes}, {"moonshotai-Kimi-K2", hermes},
	{"GLM", family{Tokenizer: "qwen3", Open: "\n<think>", Close: "</think>\n", Call: "\n<tool_call>NAME\n<arg_key>query</arg_key>\n<arg_value>ARGS</arg_value>\n</tool_call>", End: "<|user|>"}},
	{"Kimi", family{Tokenizer: "qwen3", Open: "<think>", Close: "</think>", Call: "<|tool_calls_section_begin|><|tool_call_begin|>ID<|tool_call_argument_begin|>ARGS<|tool_call_end|><|tool_calls_section_end|>", End: "<|im_end|>"}},
	{"Seed-OSS", family{Tokenizer: "qwen3", Open: "<seed:think>", Close: "</seed:think>", Call: "<seed:tool_call>\n<function=NAME>\n<parameter=query>ARGS</parameter>\n</function>\n</seed:tool_call>", End: "<seed:eos>"}},
	{"", family{Tokenizer: "qwen3", Open: "<think>\n", Close: "\n</think>\n\n", Call: "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGS}\n</tool_call>", End: "<|im_end|>"}},
}

// hermes stands for models that do not reason.
var hermes = family{Tokenizer: "qwen3", Call: "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGS}\n</tool_call>", End: "<|im_end|>"}

// realTokenizers are the directories that tokenizer/interop/run.sh fetches.
var realTokenizers = map[string]string{"llama3": "llama3_1", "gemma": "gemma3"}

// TestInterop_PublishedTemplates is TestMatrix_TemplatesOfEachKind for the templates in
// $WARMROUTE_DATA/chat-templates, with the models' own tokenizers where
// $WARMROUTE_INTEROP_DIR has them, else with trained ones. It writes its table to
// $WARMROUTE_TABLE.
func TestInterop_PublishedTemplates(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(os.Getenv("WARMROUTE_DATA"), "chat-templates", "*.jinja"))
	if err != nil || len(files) < 12 {
		t.Fatalf("%d templates in $WARMROUTE_DATA/chat-templates, %v", len(files), err)
	}
	slices.Sort(files)
	var families []*family
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f := &family{}
		for _, p := range published {
			if strings.Contains(filepath.Base(file), p.name) {
				*f = p.family
				break
			}
		}
		f.name = strings.TrimSuffix(filepath.Base(file), ".jinja")
		f.model = loadFamily(t, tokenizerOf(f.Tokenizer), string(raw))
		families = append(families, f)
	}
	table := matrix(t, families)
	if to := os.Getenv("WARMROUTE_TABLE"); to != "" {
		if err := os.WriteFile(to, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func tokenizerOf(name string) string {
	if dir := os.Getenv("WARMROUTE_INTEROP_DIR"); dir != "" {
		of := name
		if r := realTokenizers[name]; r != "" {
			of = r
		}
		if _, err := os.Stat(filepath.Join(dir, of, "tokenizer.json")); err == nil {
			return filepath.Join(dir, of)
		}
	}
	return filepath.Join(trained, name)
}
