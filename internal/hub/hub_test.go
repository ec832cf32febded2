package hub

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func dir(t *testing.T, h *Hub, revision string) string {
	t.Helper()
	d, err := h.Dir(t.Context(), model, revision)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDir_FillsTheCacheAsHuggingfaceHubDoes(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	c := f.config(t, cache)
	c.Token = secret
	got := dir(t, New(c), "")
	root := filepath.Join(cache, "models--acme--tiny")
	if want := filepath.Join(root, "snapshots", commitA); got != want {
		t.Errorf("Dir is %s, want %s", got, want)
	}
	tok, conf, small := etagOf(`{"model":{}}`), etagOf(`{"eos_token":"</s>"}`)[:40], etagOf(`{}`)[:40]
	want := []string{
		".no_exist/" + commitA + "/chat_template.jinja = ",
		".no_exist/" + commitA + "/chat_template.json = ",
		".no_exist/" + commitA + "/generation_config.json = ",
		".no_exist/" + commitA + "/special_tokens_map.json = ",
	}
	blobs := map[string]string{tok: `{"model":{}}`, conf: `{"eos_token":"</s>"}`, small: `{}`}
	for _, line := range tree(t, filepath.Join(root, "blobs")) {
		name, content, _ := strings.Cut(line, " = ")
		if blobs[name] != content {
			t.Errorf("blob %s holds %q", name, content)
		}
		delete(blobs, name)
	}
	if len(blobs) > 0 {
		t.Errorf("missing blobs: %v", blobs)
	}
	var rest []string
	for _, line := range tree(t, root) {
		if !strings.HasPrefix(line, "blobs/") {
			rest = append(rest, line)
		}
	}
	equal(t, "cache", rest, append(want,
		"refs/main = "+commitA,
		"snapshots/"+commitA+"/config.json -> ../../blobs/"+small,
		"snapshots/"+commitA+"/tokenizer.json -> ../../blobs/"+tok,
		"snapshots/"+commitA+"/tokenizer_config.json -> ../../blobs/"+conf,
	))
	if b, err := os.ReadFile(filepath.Join(got, "tokenizer.json")); err != nil || string(b) != `{"model":{}}` {
		t.Errorf("tokenizer.json reads %q, %v", b, err)
	}
}

func TestDir_AsksOnlyForWhatIsNotCached(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	h := New(f.config(t, cache))
	first := dir(t, h, "")
	f.requests()

	if d := dir(t, h, ""); d != first {
		t.Errorf("second Dir is %s, want %s", d, first)
	}
	equal(t, "same branch", f.requests(), []string{"HEAD hub.test /acme/tiny/resolve/main/tokenizer.json"})

	dir(t, h, commitA)
	equal(t, "its commit", f.requests(), nil)

	f.set(commitB, "config.json", `{"new":1}`)
	dir(t, h, "main")
	for _, r := range f.requests() {
		// Contents that did not change are linked; the hub is only asked for their ETag.
		if strings.Contains(r, "cdn.test") || strings.Contains(r, "resolve-cache") && !strings.HasSuffix(r, "/config.json") {
			t.Errorf("an unchanged file was downloaded: %s", r)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(cache, "models--acme--tiny/refs/main")); string(b) != commitB {
		t.Errorf("refs/main is %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(first, "config.json")); string(b) != `{}` {
		t.Errorf("the old snapshot's config.json is %q", b)
	}
}

func TestDir_TakesBranchesWithSlashesAndTags(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	h := New(f.config(t, cache))
	dir(t, h, "refs/pr/1")
	if got := f.requests()[0]; got != "HEAD hub.test /acme/tiny/resolve/refs%2Fpr%2F1/tokenizer.json" {
		t.Errorf("first request: %s", got)
	}
	dir(t, h, "v1.0")
	for _, ref := range []string{"refs/refs/pr/1", "refs/v1.0"} {
		if b, _ := os.ReadFile(filepath.Join(cache, "models--acme--tiny", ref)); string(b) != commitA {
			t.Errorf("%s is %q", ref, b)
		}
	}
}

func TestDir_ACommitNeedsNoRef(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	dir(t, New(f.config(t, cache)), commitA)
	if _, err := os.Stat(filepath.Join(cache, "models--acme--tiny", "refs")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("refs: %v", err)
	}
}

func TestDir_KeepsTheTokenFromOtherHosts(t *testing.T) {
	f := newFake()
	c := f.config(t, t.TempDir())
	c.Token = secret
	dir(t, New(c), "")
	var cdn int
	for _, r := range f.requests() {
		other := strings.Contains(r, "cdn.test")
		if sent := strings.HasSuffix(r, " token"); sent == other {
			t.Errorf("%s: token sent %t", r, sent)
		}
		if other {
			cdn++
		}
	}
	if cdn != 1 {
		t.Errorf("%d requests reached the file host, want 1", cdn)
	}
}

func TestDir_FollowsARenamedRepository(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	f.hook = func(w http.ResponseWriter, r *http.Request) bool {
		to, old := strings.CutPrefix(r.URL.Path, "/old/name/")
		if old {
			http.Redirect(w, r, "/acme/tiny/"+to, http.StatusTemporaryRedirect)
		}
		return old
	}
	d, err := New(f.config(t, cache)).Dir(t.Context(), "old/name", "")
	if err != nil || d != filepath.Join(cache, "models--old--name", "snapshots", commitA) {
		t.Errorf("Dir is %s, %v", d, err)
	}
}

// The default client, real sockets and two ports in place of two hosts.
func TestDir_WorksOverTheNetwork(t *testing.T) {
	f := newFake()
	var cdnAuth []string
	cdn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cdnAuth = append(cdnAuth, r.Header.Get("Authorization"))
		f.serveContent(w, r)
	}))
	defer cdn.Close()
	f.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/tokenizer.json") {
			etag := etagOf(`{"model":{}}`)
			w.Header().Set("X-Repo-Commit", commitA)
			w.Header().Set("X-Linked-Etag", etag)
			http.Redirect(w, r, cdn.URL+"/"+etag+"?Signature=s3cr3t", http.StatusFound)
			return true
		}
		return false
	}
	srv := httptest.NewServer(f)
	defer srv.Close()
	c := f.config(t, t.TempDir())
	c.Endpoint, c.Token, c.Client = srv.URL+"/", secret, nil
	h := New(c)
	defer h.client.CloseIdleConnections()
	dir(t, h, "")
	equal(t, "Authorization at the file host", cdnAuth, []string{""})
}

func TestDir_ConcurrentCallersShareOneLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.hook = func(http.ResponseWriter, *http.Request) bool { time.Sleep(time.Second); return false }
		h := New(f.config(t, t.TempDir()))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := h.Dir(t.Context(), model, ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		var heads int
		for _, r := range f.requests() {
			if strings.HasPrefix(r, "HEAD") {
				heads++
			}
		}
		if heads != 1 {
			t.Errorf("%d lookups, want 1", heads)
		}
		if n := len(h.mu.flights); n != 0 {
			t.Errorf("%d lookups are still listed", n)
		}
	})
}

func TestDir_AWaitingCallerTakesOverFromOneThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.hook = func(http.ResponseWriter, *http.Request) bool { time.Sleep(time.Second); return false }
		h := New(f.config(t, t.TempDir()))
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		impatient, stopWaiting := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := h.Dir(ctx, model, ""); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first caller got %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := h.Dir(t.Context(), model, ""); err != nil {
				t.Errorf("the second caller got %v", err)
			}
		})
		wg.Go(func() {
			if _, err := h.Dir(impatient, model, ""); !errors.Is(err, context.Canceled) {
				t.Errorf("the third caller got %v", err)
			}
		})
		synctest.Wait()
		stopWaiting()
		wg.Wait()
	})
}

func TestDir_ProcessesMayFillOneCacheTogether(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		h := New(f.config(t, cache))
		wg.Go(func() {
			for range 3 {
				d, err := h.Dir(t.Context(), model, "")
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := os.ReadFile(filepath.Join(d, "tokenizer.json")); string(b) != `{"model":{}}` {
					t.Errorf("tokenizer.json reads %q, %v", b, err)
				}
			}
		})
	}
	wg.Wait()
	for _, line := range tree(t, cache) {
		if strings.Contains(line, ".incomplete") {
			t.Errorf("left behind: %s", line)
		}
	}
}

func TestDir_CopiesWhereLinksFail(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	h := New(f.config(t, cache))
	h.symlink = func(string, string) error { return errors.ErrUnsupported }
	d := dir(t, h, "")
	equal(t, "snapshot", tree(t, d), []string{
		"config.json = {}", `tokenizer.json = {"model":{}}`, `tokenizer_config.json = {"eos_token":"</s>"}`})
}

func TestDir_ReplacesALinkWhoseBlobIsGoneOrShort(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	h := New(f.config(t, cache))
	d := dir(t, h, "")
	blob := filepath.Join(d, "../../blobs", etagOf(`{"model":{}}`))
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	dir(t, h, commitA)
	if err := errors.Join(os.WriteFile(blob, []byte("{"), 0o666), os.Remove(filepath.Join(d, "tokenizer.json"))); err != nil {
		t.Fatal(err)
	}
	dir(t, h, commitA)
	if b, _ := os.ReadFile(filepath.Join(d, "tokenizer.json")); string(b) != `{"model":{}}` {
		t.Errorf("tokenizer.json reads %q", b)
	}
}

// What an engine left in the cache: files it asked for, nothing about the others.
func engineCache(t *testing.T) (cache, snapshot string) {
	cache = t.TempDir()
	root := filepath.Join(cache, "models--acme--tiny")
	write(t, root, "refs/main", commitA)
	write(t, root, "blobs/0123", `{"model":{}}`)
	write(t, root, "snapshots/"+commitA+"/model.safetensors", "weights")
	snapshot = filepath.Join(root, "snapshots", commitA)
	if err := os.Symlink("../../blobs/0123", filepath.Join(snapshot, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	return cache, snapshot
}

func TestDir_OfflineUsesTheCacheOfAnEngine(t *testing.T) {
	f := newFake()
	cache, snapshot := engineCache(t)
	c := f.config(t, cache)
	c.Offline = true
	h := New(c)
	for _, revision := range []string{"", "main", commitA} {
		if d := dir(t, h, revision); d != snapshot {
			t.Errorf("Dir of %q is %s, want %s", revision, d, snapshot)
		}
	}
	for _, revision := range []string{"v1.0", commitB} {
		_, err := h.Dir(t.Context(), model, revision)
		wants(t, err, "model acme/tiny", "offline", "tokenizer.json", revision, cache, "with the network allowed")
		if strings.Contains(err.Error(), "HF_HUB_OFFLINE") {
			t.Errorf("%v: it is not set", err)
		}
	}
	equal(t, "requests", f.requests(), nil)
}

func TestDir_OnlineCompletesTheCacheOfAnEngine(t *testing.T) {
	f := newFake()
	cache, snapshot := engineCache(t)
	if d := dir(t, New(f.config(t, cache)), ""); d != snapshot {
		t.Errorf("Dir is %s, want %s", d, snapshot)
	}
	for _, r := range f.requests()[1:] {
		if strings.HasSuffix(r, "/tokenizer.json") {
			t.Errorf("a cached file was asked for: %s", r)
		}
	}
	byCommit, snapshot2 := engineCache(t)
	dir(t, New(f.config(t, byCommit)), commitA)
	if !isFile(filepath.Join(snapshot2, "tokenizer_config.json")) {
		t.Error("tokenizer_config.json of the commit was not fetched")
	}
	for _, r := range f.requests() {
		if strings.HasPrefix(r, "HEAD") {
			t.Errorf("a commit was looked up: %s", r)
		}
	}
	if !isFile(filepath.Join(snapshot, "tokenizer_config.json")) {
		t.Error("tokenizer_config.json was not fetched")
	}
}

func TestDir_WorksWithACacheThatTakesNoRef(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	write(t, cache, "models--acme--tiny/refs", "a file in the way")
	dir(t, New(f.config(t, cache)), "")

	cache = t.TempDir()
	write(t, cache, "models--acme--tiny/blobs", "a file in the way")
	_, err := New(f.config(t, cache)).Dir(t.Context(), model, "")
	wants(t, err, "model acme/tiny", "HF_HUB_CACHE", cache)
	if errors.Is(err, ErrUnreachable) {
		t.Errorf("%v counts as unreachable", err)
	}
}
