package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// allFiles are the files that Load reads, in a directory that write made.
var allFiles = append([]string{"additional_chat_templates/rag.jinja"}, loaded...)

// TestLoad_RefusesWhatIsNoFile: a pipe never begins, a device never ends.
func TestLoad_RefusesWhatIsNoFile(t *testing.T) {
	kinds := map[string]func(path string) error{
		"pipe":             func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"device":           func(path string) error { return os.Symlink("/dev/zero", path) },
		"directory":        func(path string) error { return os.Mkdir(path, 0o755) },
		"link to a pipe":   func(path string) error { return pipeAndLink(path) },
		"link in a circle": func(path string) error { return os.Symlink(path, path) },
	}
	for kind, put := range kinds {
		for _, name := range allFiles {
			dir := write(t, map[string]string{name: ""})
			path := filepath.Join(dir, name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { _, err := Load(dir); done <- err }() // ends, or the test fails
			select {
			case err := <-done:
				want := "not a regular file"
				if kind == "link in a circle" {
					want = "too many levels"
				}
				if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), filepath.Base(name)) {
					t.Errorf("%s as %s: %v", kind, name, err)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s as %s: Load hangs", kind, name)
			}
		}
	}
}

func pipeAndLink(path string) error {
	if err := syscall.Mkfifo(path+".pipe", 0o644); err != nil {
		return err
	}
	return os.Symlink(path+".pipe", path)
}

// TestLoad_BoundsEveryFile: what is too large is not read, and the error says the limit; so
// does one about a file that says less of its size than it holds.
func TestLoad_BoundsEveryFile(t *testing.T) {
	for _, name := range allFiles {
		limit, text := int64(maxConfigBytes), "16777216"
		switch {
		case name == "tokenizer.json":
			limit, text = MaxFileBytes, "536870912"
		case strings.HasSuffix(name, ".jinja"):
			limit, text = maxTemplateBytes, "4194304"
		}
		dir := write(t, map[string]string{name: ""})
		if err := os.Truncate(filepath.Join(dir, name), limit+1); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "over the limit of "+text) || !strings.Contains(err.Error(), filepath.Base(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := map[string]string{}
	for i := range maxTemplates + 1 {
		many["additional_chat_templates/"+strings.Repeat("x", i+1)+".jinja"] = ""
	}
	if _, err := Load(write(t, many)); err == nil || !strings.Contains(err.Error(), "65 templates are more than the limit of 64") {
		t.Errorf("many templates: %v", err)
	}
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	if _, err := readAll("endless", zero, 0, 1000); err == nil || !strings.Contains(err.Error(), "endless: 1001 bytes or more are over the limit of 1000") {
		t.Errorf("an endless file: %v", err)
	}
	if data, err := readAll("grows", strings.NewReader("as long as it may be"), 3, 20); err != nil || len(data) != 20 {
		t.Errorf("%q, %v", data, err)
	}
}

// TestLoad_BoundsWhatGrowsInMemory: parts of files that take many times their text.
func TestLoad_BoundsWhatGrowsInMemory(t *testing.T) {
	raw, err := os.ReadFile("testdata/qwen3/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	f := func(name, element string, n int) {
		t.Helper()
		file := map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &file); err != nil {
			t.Fatal(err)
		}
		list := "[" + strings.Repeat(element+",", n/(len(element)+1)) + element + "]"
		if name != "added_tokens" {
			list = `{"type":"Sequence","` + name + `s":` + list + `}`
		}
		file[name] = json.RawMessage(list)
		long, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Read(long); err == nil || !strings.Contains(err.Error(), name+": ") || !strings.Contains(err.Error(), "over the limit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	f("normalizer", `{"type":"NFC"}`, maxComponentBytes)
	f("pre_tokenizer", `{"type":"Digits"}`, maxComponentBytes)
	f("post_processor", `{"type":"ByteLevel"}`, maxComponentBytes)
	f("decoder", `{"type":"ByteLevel"}`, maxComponentBytes)
	f("added_tokens", `{"content":"a"}`, maxAddedBytes)
	templates := `{"chat_template":[` + strings.Repeat(`{"name":"a","template":""},`, maxTemplates) + `{"name":"a","template":""}]}`
	if _, err := Load(write(t, map[string]string{"tokenizer_config.json": templates})); err == nil || !strings.Contains(err.Error(), "65 templates are more than the limit of 64") {
		t.Errorf("many templates: %v", err)
	}
}

// TestStamp_ChangesWithEveryFile: also with the blob behind a link of Hugging Face's cache,
// and with a file that comes or goes.
func TestStamp_ChangesWithEveryFile(t *testing.T) {
	dir := write(t, map[string]string{"additional_chat_templates/x.jinja": ""})
	blobs := t.TempDir()
	seen := map[string]string{Stamp(dir): "at first"}
	note := func(what string) {
		t.Helper()
		if old, again := seen[Stamp(dir)]; again {
			t.Errorf("%s: the stamp is that of %s", what, old)
		}
		seen[Stamp(dir)] = what
	}
	for i, name := range allFiles {
		path, blob := filepath.Join(dir, name), filepath.Join(blobs, filepath.Base(name))
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(blob, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(blob, path); err != nil {
			t.Fatal(err)
		}
		note("a new " + name)
		if err := os.Chtimes(blob, time.Time{}, time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		note("another time of " + name)
		if err := os.WriteFile(blob, []byte("{ }"), 0o644); err != nil {
			t.Fatal(err)
		}
		note("another size of " + name)
	}
	if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	note("no tokenizer.json")
}

// TestLoad_FollowsLinks: Hugging Face's cache holds links to files.
func TestLoad_FollowsLinks(t *testing.T) {
	dir := write(t, map[string]string{"tokenizer_config.json": `{"eos_token":"<e>"}`, "chat_template.jinja": "T"})
	links := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		if err := os.Symlink(filepath.Join(dir, name), filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(links)
	if err != nil || tok.Config().EOSToken != "<e>" || len(tok.Config().ChatTemplates) != 1 {
		t.Errorf("%v, %v", tok, err)
	}
}
