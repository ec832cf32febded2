package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	model   = "acme/tiny"
	secret  = "hf_abcdefghijklmnop"
)

// fake is a hub of one model, http://hub.test, with a file host, http://cdn.test.
//
//	hub.test  HEAD/GET /acme/tiny/resolve/<rev>/<file>   small files: 307 on the same host;
//	                                                     large ones: 302 to the file host
//	cdn.test  GET /<etag>?Signature=...                  contents
type fake struct {
	hook func(w http.ResponseWriter, r *http.Request) bool // answers in place of the fake when true

	mu struct {
		sync.Mutex
		commit string            // of main
		files  map[string]string // name to content, at every commit
		large  map[string]bool
		log    []string // "METHOD host path", with " token" appended when one was sent
	}
}

func newFake() *fake {
	f := new(fake)
	f.mu.commit = commitA
	f.mu.files = map[string]string{
		"tokenizer.json":        `{"model":{}}`,
		"tokenizer_config.json": `{"eos_token":"</s>"}`,
		"config.json":           `{}`,
		"model.safetensors":     "weights",
	}
	f.mu.large = map[string]bool{"tokenizer.json": true}
	return f
}

func (f *fake) set(commit, name, content string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.commit, f.mu.files[name] = commit, content
}

// requests returns the log and empties it.
func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.mu.log
	f.mu.log = nil
	return log
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	line := r.Method + " " + r.Host + " " + r.URL.EscapedPath()
	if r.Header.Get("Authorization") == "Bearer "+secret {
		line += " token"
	}
	f.mu.Lock()
	f.mu.log = append(f.mu.log, line)
	f.mu.Unlock()
	if f.hook != nil && f.hook(w, r) {
		return
	}
	if strings.HasPrefix(r.Host, "cdn.test") {
		f.serveContent(w, r)
		return
	}
	f.serveHub(w, r)
}

func etagOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func (f *fake) serveContent(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	files := maps.Clone(f.mu.files)
	f.mu.Unlock()
	for _, content := range files {
		if "/"+etagOf(content) == r.URL.Path && r.URL.Query().Get("Signature") == "s3cr3t" {
			io.WriteString(w, content)
			return
		}
	}
	w.WriteHeader(http.StatusForbidden)
}

func (f *fake) serveHub(w http.ResponseWriter, r *http.Request) {
	rest, cached := strings.CutPrefix(r.URL.Path, "/api/resolve-cache/models/")
	id, path, ok := strings.Cut(strings.TrimPrefix(rest, "/"), "/resolve/")
	if !ok || id != model {
		deny(w, http.StatusUnauthorized, "RepoNotFound")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	cut := strings.LastIndexByte(path, '/')
	revision, name := path[:cut], path[cut+1:]
	commit := revision
	switch revision {
	case "main", "refs/pr/1", "v1.0":
		commit = f.mu.commit
	case commitA, commitB:
	default:
		deny(w, http.StatusNotFound, "RevisionNotFound")
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	content, ok := f.mu.files[name]
	if !ok {
		deny(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	etag := etagOf(content)
	if !f.mu.large[name] {
		etag = etag[:40]
	}
	if cached {
		w.Header().Set("Etag", `"`+etag+`"`)
		io.WriteString(w, content)
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+etag+`"`)
	w.Header().Set("X-Linked-Size", fmt.Sprint(len(content)))
	w.Header().Set("Location", "/api/resolve-cache/models/"+model+"/resolve/"+commit+"/"+name)
	status := http.StatusTemporaryRedirect
	if f.mu.large[name] {
		w.Header().Set("Location", "http://cdn.test/"+etag+"?Signature=s3cr3t")
		status = http.StatusFound
	}
	w.WriteHeader(status)
}

func deny(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(status)
}

// pipes is a listener whose connections live in memory, so that a test in a synctest bubble
// has HTTP in virtual time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// client serves the handler until the test ends and returns a client that reaches it under
// every host name.
func client(t *testing.T, handler http.Handler) *http.Client {
	t.Helper()
	p := make(pipes)
	srv := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(p) }()
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		p <- theirs
		return ours, nil
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		close(p)
		srv.Close()
		<-served
	})
	return &http.Client{Transport: tr}
}

// config is a Config for the fake with nothing from the environment.
func (f *fake) config(t *testing.T, cache string) Config {
	return Config{
		Endpoint: "http://hub.test",
		Cache:    cache,
		Getenv:   func(string) string { return "" },
		Client:   client(t, f),
	}
}

// tree lists a directory: files with their content, links with their target.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.Type()&os.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			lines = append(lines, name+" -> "+target)
			return err
		}
		b, err := os.ReadFile(path)
		lines = append(lines, name+" = "+string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got  %s\n want %s", what, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

// write puts a file below a root.
func write(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

// wants fails unless the error holds every text, and in no case the token or a signature.
func wants(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("error %q shows a secret", err)
	}
}
