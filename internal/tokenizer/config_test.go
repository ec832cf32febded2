package tokenizer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// write makes a directory with a tiny tokenizer.json and the given files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["tokenizer.json"] = tinyJSON(gpt2Level)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoad_Config(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Config
	}{
		{"nothing", map[string]string{}, Config{}},
		{"strings and objects", map[string]string{
			"tokenizer_config.json":  `{"bos_token":{"__type":"AddedToken","content":"<s>","lstrip":false},"eos_token":"</s>","pad_token":null,"unk_token":"u","add_bos_token":true,"model_max_length":4096,"chat_template":"{{ x }}\n"}`,
			"generation_config.json": `{"eos_token_id":7}`,
		}, Config{
			BOSToken: "<s>", EOSToken: "</s>", UnkToken: "u", EOSIDs: []uint32{7},
			SpecialTokens: []SpecialToken{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "u"}},
			ChatTemplates: []ChatTemplate{{"default", "{{ x }}\n"}},
		}},
		{"named templates, no bound", map[string]string{
			"tokenizer_config.json":  `{"model_max_length":1000000000000000019884624838656,"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}],"extra_special_tokens":{"image_token":"<i>"},"boi_token":"<b>"}`,
			"generation_config.json": `{"eos_token_id":[1,2]}`,
		}, Config{
			EOSIDs: []uint32{1, 2}, SpecialTokens: []SpecialToken{{"boi_token", "<b>"}, {"image_token", "<i>"}},
			ChatTemplates: []ChatTemplate{{"default", "D"}, {"tool_use", "T"}},
		}},
		{"the file wins", map[string]string{
			"tokenizer_config.json":                `{"chat_template":"no"}`,
			"chat_template.json":                   `{"chat_template":"no"}`,
			"chat_template.jinja":                  "yes",
			"additional_chat_templates/rag.jinja":  "rag",
			"additional_chat_templates/notes.text": "no",
		}, Config{ChatTemplates: []ChatTemplate{{"default", "yes"}, {"rag", "rag"}}}},
		{"a processor's template", map[string]string{"chat_template.json": `{"chat_template":"P"}`},
			Config{ChatTemplates: []ChatTemplate{{"default", "P"}}}},
		{"older special tokens", map[string]string{"special_tokens_map.json": `{"eos_token":{"content":"<e>"}}`},
			Config{EOSToken: "<e>", SpecialTokens: []SpecialToken{{"eos_token", "<e>"}}}},
	} {
		tok, err := Load(write(t, c.files))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := *tok.Config(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// transformers adds the tokens that only tokenizer_config.json defines, and takes its
// flags for the others.
func TestLoad_TokensBesideTheFile(t *testing.T) {
	tok, err := Load(write(t, map[string]string{
		"tokenizer_config.json": `{"eos_token":"<e>","pad_token":"<s>","added_tokens_decoder":{
			"301":{"content":"<new>","lstrip":false},"9":{"content":"<s>","rstrip":true},"20":{"content":"abc"}}}`}))
	if err != nil {
		t.Fatal(err)
	}
	// The file's own <user> tokens have 14 and 15; then in order of the decoder's ids.
	got := tok.Encode(nil, []byte("a<s>  <new>abc<e>"))
	if want := []uint32{1, 9, 17, 16, 18}; !slices.Equal(got, want) {
		t.Errorf("Encode = %v, want %v", got, want)
	}
}

func TestLoad_Errors(t *testing.T) {
	if _, err := Load(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
	for name, text := range map[string]string{
		"tokenizer_config.json":  `{"chat_template":7}`,
		"generation_config.json": `{"eos_token_id":"x"}`,
		"chat_template.json":     `[]`,
	} {
		if _, err := Load(write(t, map[string]string{name: text})); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(name, ".json")[:4]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEncodeSpecial_PutsTheFrameAround(t *testing.T) {
	rest := gpt2Level + `"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
		"single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"end","type_id":0}}],
		"special_tokens":{"<s>":{"ids":[9]},"end":{"ids":[3,4]}}}]},`
	tok := tiny(t, rest)
	if got, want := tok.EncodeSpecial([]uint32{1}, []byte("ab")), []uint32{1, 9, 7, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("EncodeSpecial = %v, want %v", got, want)
	}
	if got, want := tok.Encode(nil, []byte("ab")), []uint32{7}; !slices.Equal(got, want) {
		t.Errorf("Encode = %v, want %v", got, want)
	}
}
