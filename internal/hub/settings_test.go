package hub

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLooks_TellsIdsFromPaths(t *testing.T) {
	h := New(Config{Getenv: func(string) string { return "" }})
	for _, id := range []string{"gpt2", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "a/b", "0/1", "_x/y_", strings.Repeat("n", 96)} {
		if !h.Looks(id) {
			t.Errorf("%q is an id", id)
		}
	}
	for _, id := range []string{
		"", "/", "a/", "/a", "a/b/c", ".", "..", "./a", "../a", "a/..", "a/../b", "/models/x", "~/x", `C:\x`, `a\b`,
		"a--b", "a/b--c", "-a", "a-", ".a", "a.", "a/.b", "a/b.", "a.git", "a b", "a/b\n", "a\x00", "a%2fb", "a?b", "a#b", "a@b", "ä/b", "a:b",
		strings.Repeat("n", 97), "http://x/y",
	} {
		if h.Looks(id) {
			t.Errorf("%q is no id", id)
		}
	}
}

func TestDir_RefusesHostileIdsAndRevisions(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	h := New(f.config(t, cache))
	for _, id := range []string{"", "../../etc", "a/../b", "a/b/c", "/etc/passwd", "a\x00b", strings.Repeat("a/", 5000)} {
		_, err := h.Dir(t.Context(), id, "")
		wants(t, err, "is not a model id")
		if len(err.Error()) > 400 {
			t.Errorf("the error has %d bytes", len(err.Error()))
		}
	}
	for _, revision := range []string{"..", "../x", "a/../b", "a..b", "/a", "a/", "a//b", ".git/x", "a b", "a\n", "a?b", "a#b", "a%2e", `a\b`, strings.Repeat("r", 201)} {
		_, err := h.Dir(t.Context(), model, revision)
		wants(t, err, "model acme/tiny", "is not a revision")
	}
	equal(t, "requests", f.requests(), nil)
	equal(t, "cache", tree(t, cache), nil)
}

func TestNew_ReadsTheEnvironmentOfHuggingfaceHub(t *testing.T) {
	home := t.TempDir()
	write(t, home, ".cache/huggingface/token", "from-home\n")
	write(t, home, "hf/token", "from-hf-home")
	write(t, home, "mine", " from-path ")
	check := func(vars string, c Config, cache, token, endpoint string, offline bool) {
		t.Helper()
		env := map[string]string{"HOME": home}
		for v := range strings.FieldsSeq(vars) {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		c.Getenv = func(name string) string { return env[name] }
		h := New(c)
		if h.invalid != nil {
			t.Fatalf("%s: %v", vars, h.invalid)
		}
		if want := filepath.Join(home, cache); h.cache != want {
			t.Errorf("%s: cache %s, want %s", vars, h.cache, want)
		}
		if h.token != token || h.address() != endpoint || h.offline != offline {
			t.Errorf("%s: token %q, endpoint %s, offline %t", vars, h.token, h.address(), h.offline)
		}
	}
	hf := "https://huggingface.co"
	check("", Config{}, ".cache/huggingface/hub", "from-home", hf, false)
	check("XDG_CACHE_HOME=~/xdg HF_TOKEN=t", Config{}, "xdg/huggingface/hub", "t", hf, false)
	check("XDG_CACHE_HOME=~/xdg HF_HOME=$HOME/hf", Config{}, "hf/hub", "from-hf-home", hf, false)
	check("HF_HOME=~/hf HF_HUB_CACHE=~/c HF_TOKEN_PATH=~/mine", Config{}, "c", "from-path", hf, false)
	check("HUGGINGFACE_HUB_CACHE=~/old HF_HOME=~/none", Config{}, "old", "", hf, false)
	check("HF_HUB_CACHE=~/c HF_ENDPOINT=http://u:p@mirror/hf/ HF_TOKEN=t HF_HUB_OFFLINE=0",
		Config{}, "c", "t", "http://mirror/hf", false)
	check("HF_HUB_CACHE=~/c HF_ENDPOINT=http://mirror HF_TOKEN=t",
		Config{Cache: home + "/given", Token: "given", Endpoint: "https://given", Offline: true}, "given", "given", "https://given", true)
	for _, yes := range []string{"1", "true", "YES", "On"} {
		check("HF_TOKEN=t HF_HUB_OFFLINE="+yes, Config{}, ".cache/huggingface/hub", "t", hf, true)
		check("HF_TOKEN=t TRANSFORMERS_OFFLINE="+yes, Config{}, ".cache/huggingface/hub", "t", hf, true)
	}
}

func TestDir_NamesTheSettingThatIsWrong(t *testing.T) {
	check := func(c Config, texts ...string) {
		t.Helper()
		if c.Getenv == nil {
			c.Getenv = func(string) string { return "" }
		}
		_, err := New(c).Dir(t.Context(), model, "")
		wants(t, err, append(texts, "model acme/tiny")...)
	}
	check(Config{}, "HF_HOME", "HF_HUB_CACHE")
	for _, endpoint := range []string{"huggingface.co", "ftp://x", "http://", "http://[", "/x"} {
		check(Config{Cache: t.TempDir(), Endpoint: endpoint}, "HF_ENDPOINT")
	}
	check(Config{Cache: t.TempDir(), Token: secret + "\r\nX-Evil: 1"}, "HF_TOKEN")
}

// A mirror may send its clients on to the hub itself, whose token it is; nobody else.
func TestTrusted_TheEndpointAndTheHubOnly(t *testing.T) {
	h := New(Config{Endpoint: "http://mirror:8080/hf", Cache: t.TempDir(), Getenv: func(string) string { return "" }})
	for address, want := range map[string]bool{
		"http://mirror:8080/x":          true,
		"https://huggingface.co/x":      true,
		"http://huggingface.co/x":       false,
		"https://mirror:8080/x":         false,
		"http://mirror/x":               false,
		"https://cdn.huggingface.co/x":  false,
		"https://huggingface.co.evil/x": false,
	} {
		u, err := parseEndpoint(address)
		if err != nil {
			t.Fatal(err)
		}
		if h.trusted(u) != want {
			t.Errorf("trusted(%s) is %t", address, !want)
		}
	}
}

// TestNew_ReadsNoPipe: what is no regular file may never end, as token or as ref.
func TestNew_ReadsNoPipe(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	write(t, cache, "models--acme--tiny/refs/v1", "")
	pipe := filepath.Join(cache, "models--acme--tiny/refs/main")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	c := f.config(t, cache)
	done := make(chan error, 1)
	go func() { // ends, or the test fails
		for _, path := range []string{cache, pipe, "/dev/zero"} {
			c.Getenv = func(name string) string { return map[string]string{"HF_TOKEN_PATH": path}[name] }
			if h := New(c); h.token != "" || h.invalid != nil {
				t.Errorf("%s: token %q, %v", path, h.token, h.invalid)
			}
		}
		_, err := New(c).Dir(t.Context(), model, "")
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a pipe is waited for")
	}
}
