package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDir_ErrorsNameTheModelAndTheFix(t *testing.T) {
	answer := func(status int, code string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { deny(w, status, code); return true }
	}
	check := func(hook func(http.ResponseWriter, *http.Request) bool, token string, texts ...string) {
		t.Helper()
		f := newFake()
		f.hook = hook
		c := f.config(t, t.TempDir())
		c.Token = token
		_, err := New(c).Dir(t.Context(), model, "")
		wants(t, err, append(texts, "model acme/tiny: ")...)
		if errors.Is(err, ErrUnreachable) {
			t.Errorf("%v counts as unreachable", err)
		}
		if n := len(f.requests()); n != 1 {
			t.Errorf("%d requests for an answer that will not change", n)
		}
	}
	check(answer(401, "GatedRepo"), "", "gated", "http://hub.test/acme/tiny", "set HF_TOKEN")
	check(answer(403, "GatedRepo"), secret, "gated", "gives no access", "account of the token")
	check(answer(401, "RepoNotFound"), "", "not found at http://hub.test", "check the id", "set HF_TOKEN")
	check(answer(401, ""), secret, "status 401", "HF_TOKEN", "valid")
	check(answer(403, ""), "", "status 403", "set HF_TOKEN")
	check(answer(404, "RepoNotFound"), secret, "not found", "check the id")
	check(answer(404, ""), "", "not found", "check the id")
	check(answer(404, "RevisionNotFound"), "", `no revision "main"`)
	check(answer(410, ""), "", "status 410")
	check(func(w http.ResponseWriter, r *http.Request) bool { return true }, "", "HF_ENDPOINT", "X-Repo-Commit")
}

func TestDir_RefusesWhatNoHubAnswers(t *testing.T) {
	check := func(text string, hook func(w http.ResponseWriter, r *http.Request)) {
		t.Helper()
		f, cache := newFake(), t.TempDir()
		f.hook = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("X-Repo-Commit", commitA)
			if r.Method == http.MethodHead && text != "X-Repo-Commit" {
				return true
			}
			hook(w, r)
			return true
		}
		_, err := New(f.config(t, cache)).Dir(t.Context(), model, "")
		wants(t, err, "model acme/tiny", text)
		equal(t, "cache after "+text, tree(t, cache), nil)
	}
	check("X-Repo-Commit", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Repo-Commit", "../../../../evil") })
	check("commit", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Repo-Commit", commitB) })
	for _, etag := range []string{"", `"../evil"`, `".."`, `"a/b"`, `"a\b"`, strings.Repeat("e", 129)} {
		check("ETag", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Etag", etag) })
	}
	for _, to := range []string{"file:///etc/passwd", "ftp://hub.test/x", "http://", "http://a b/"} {
		check("unusable address", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		})
	}
	check("too often", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) })
	check("more than 67108864 bytes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Linked-Etag", "abc")
		w.Header().Set("X-Linked-Size", fmt.Sprint(maxSmall+1))
	})
}

func TestDir_BoundsBodiesOfUnknownLength(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	f.hook = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Repo-Commit", commitA)
		w.Header().Set("Etag", `W/"abc"`)
		for range 100 {
			io.WriteString(w, "{"+strings.Repeat(" ", 1022)+"}")
			http.NewResponseController(w).Flush()
		}
		return true
	}
	h := New(f.config(t, cache))
	h.maxFile = 50 << 10
	_, err := h.Dir(t.Context(), model, "")
	wants(t, err, "more than 51200 bytes")
	equal(t, "cache", tree(t, cache), nil)
	h.maxFile = 100 << 10
	dir(t, h, "")
}

func TestDir_SaysWhichTokenizerTheRepositoryHas(t *testing.T) {
	f, cache := newFake(), t.TempDir()
	delete(f.mu.files, "tokenizer.json")
	h := New(f.config(t, cache))
	_, err := h.Dir(t.Context(), model, "")
	wants(t, err, "model acme/tiny", "has no tokenizer.json", "main")
	f.mu.files["tekken.json"] = "{}"
	_, err = h.Dir(t.Context(), model, "")
	wants(t, err, "has tekken.json but no tokenizer.json", "save_pretrained")
	f.requests()
	_, err = h.Dir(t.Context(), model, commitA)
	wants(t, err, "has no tokenizer.json")
	equal(t, "requests for a commit that is known to have none", f.requests(), nil)
}

// timed runs Dir in virtual time against a hook and reports how long it took.
func timed(t *testing.T, timeout time.Duration, hook func(http.ResponseWriter, *http.Request) bool, check func(took time.Duration, err error, requests []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, cache := newFake(), t.TempDir()
		f.hook = hook
		h := New(f.config(t, cache))
		ctx, start := t.Context(), time.Now()
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		_, err := h.Dir(ctx, model, "")
		check(time.Since(start), err, f.requests())
		for _, line := range tree(t, cache) {
			if strings.Contains(line, ".incomplete") {
				t.Errorf("left behind: %s", line)
			}
		}
	})
}

func TestDir_TriesThreeTimes(t *testing.T) {
	for _, status := range []int{429, 500, 502, 503, 504, 408} {
		timed(t, 0, func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(status); return true },
			func(took time.Duration, err error, requests []string) {
				wants(t, err, "model acme/tiny", "hub.test", fmt.Sprint(status))
				if !errors.Is(err, ErrUnreachable) || len(requests) != 3 || took != 1500*time.Millisecond {
					t.Errorf("status %d: %v after %d requests in %v", status, err, len(requests), took)
				}
			})
	}
}

func TestDir_WaitsAsLongAsTheHubAsks(t *testing.T) {
	busy := func(after func() string) func(http.ResponseWriter, *http.Request) bool {
		var n int
		return func(w http.ResponseWriter, r *http.Request) bool {
			if n++; n > 1 {
				return false
			}
			w.Header().Set("Retry-After", after())
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
	}
	seven := func() string { return "7" }
	timed(t, 0, busy(seven), func(took time.Duration, err error, _ []string) {
		if err != nil || took != 7*time.Second {
			t.Errorf("seconds: %v after %v", err, took)
		}
	})
	date := func() string { return time.Now().Add(9 * time.Second).UTC().Format(http.TimeFormat) }
	timed(t, 0, busy(date), func(took time.Duration, err error, _ []string) {
		if err != nil || took != 9*time.Second {
			t.Errorf("date: %v after %v", err, took)
		}
	})
	// Waiting past the deadline would only lose the answer.
	timed(t, 5*time.Second, busy(seven), func(took time.Duration, err error, _ []string) {
		if !errors.Is(err, ErrUnreachable) || took != 0 {
			t.Errorf("deadline: %v after %v", err, took)
		}
	})
	timed(t, 0, busy(func() string { return "3600" }), func(took time.Duration, err error, _ []string) {
		if !errors.Is(err, ErrUnreachable) || took != 0 {
			t.Errorf("an hour: %v after %v", err, took)
		}
	})
}

func TestDir_RepeatsADownloadThatBreaksOff(t *testing.T) {
	broken := func(times int, answer func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.Host, "cdn.test") || times == 0 {
				return false
			}
			times--
			answer(w)
			return true
		}
	}
	for name, answer := range map[string]func(w http.ResponseWriter){
		"cut short": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "12")
			w.Write([]byte(`{"mod`))
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"shorter":   func(w http.ResponseWriter) { w.Write([]byte(`{"mod`)) },
		"other":     func(w http.ResponseWriter) { w.Write([]byte(`{"model":[]}`)) },
		"forbidden": func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
	} {
		timed(t, 0, broken(2, answer), func(took time.Duration, err error, _ []string) {
			if err != nil || took != 1500*time.Millisecond {
				t.Errorf("%s, twice: %v after %v", name, err, took)
			}
		})
		timed(t, 0, broken(3, answer), func(took time.Duration, err error, _ []string) {
			wants(t, err, "model acme/tiny", "fetch tokenizer.json")
			if !errors.Is(err, ErrUnreachable) {
				t.Errorf("%s, always: %v is not ErrUnreachable", name, err)
			}
		})
	}
}

// TestDir_TakesNoPageForAFile: login pages and proxies answer with status 200 and a text of
// their own, with the right headers if they add them to whatever passes.
func TestDir_TakesNoPageForAFile(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"a page": func(w http.ResponseWriter) { io.WriteString(w, "<html><body>Log in</body></html>") },
		"a named page": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, "{}")
		},
		"compressed": func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip"); io.WriteString(w, "{}") },
		"cut":        func(w http.ResponseWriter) { io.WriteString(w, `{"a":`) },
		"empty":      func(w http.ResponseWriter) {},
	} {
		f, cache := newFake(), t.TempDir()
		f.hook = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead || !strings.HasSuffix(r.URL.Path, ".json") {
				return false
			}
			w.Header().Set("X-Repo-Commit", commitA)
			w.Header().Set("Etag", `"abc"`)
			w.Header().Set("Content-Type", "text/plain")
			answer(w)
			return true
		}
		_, err := New(f.config(t, cache)).Dir(t.Context(), model, "")
		wants(t, err, "model acme/tiny", "tokenizer_config.json", "web page", "HF_ENDPOINT")
		if errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v counts as unreachable", name, err)
		}
		equal(t, "cache after "+name, tree(t, cache), nil)
	}
	// Python writes what JSON does not have.
	f := newFake()
	f.set(commitA, "config.json", "{\"time_step_limit\": [0.0, Infinity]}\n")
	dir(t, New(f.config(t, t.TempDir())), "")
}

// TestDir_StopsAtTheLengthThatIsKnown: a body that goes on is not read to the limit.
func TestDir_StopsAtTheLengthThatIsKnown(t *testing.T) {
	timed(t, 0, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/api/resolve-cache/") || !strings.HasSuffix(r.URL.Path, "/config.json") {
			return false
		}
		for range 100 << 10 {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				break
			}
		}
		return true
	}, func(_ time.Duration, err error, _ []string) {
		wants(t, err, "config.json", "more than 2 bytes")
	})
}

// Only large files have a hash to check; the length of every file is known.
func TestDir_RefusesASmallFileOfTheWrongLength(t *testing.T) {
	timed(t, 0, func(w http.ResponseWriter, r *http.Request) bool {
		wrong := strings.HasPrefix(r.URL.Path, "/api/resolve-cache/") && strings.HasSuffix(r.URL.Path, "/config.json")
		if wrong {
			w.Write([]byte("{"))
		}
		return wrong
	}, func(_ time.Duration, err error, _ []string) {
		wants(t, err, "config.json", "1 of ")
	})
}

func TestDir_RefusesToLeaveHTTPS(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	srv := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer srv.Close()
	c := newFake().config(t, t.TempDir())
	c.Endpoint, c.Client = srv.URL, srv.Client()
	_, err := New(c).Dir(t.Context(), model, "")
	wants(t, err, "redirects to an unusable address")
}

func TestDir_GivesUpOnAHubThatStalls(t *testing.T) {
	stall := func(w http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	timed(t, 0, stall, func(took time.Duration, err error, _ []string) {
		wants(t, err, "hub.test", "no data for too long")
		if took != 3*headStall+1500*time.Millisecond {
			t.Errorf("gave up after %v", took)
		}
	})
	timed(t, 4*time.Second, stall, func(took time.Duration, err error, _ []string) {
		if !errors.Is(err, context.DeadlineExceeded) || took != 4*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
	stallBody := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.Host, "cdn.test") {
			return false
		}
		w.Write([]byte("{"))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	}
	timed(t, 0, stallBody, func(took time.Duration, err error, _ []string) {
		wants(t, err, "broke off", "no data for too long")
		if took != 3*bodyStall+1500*time.Millisecond {
			t.Errorf("gave up after %v", took)
		}
	})
	// Slow is not stalled: 12 bytes take four minutes.
	timed(t, 0, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.Host, "cdn.test") {
			return false
		}
		for i := range `{"model":{}}` {
			time.Sleep(20 * time.Second)
			w.Write([]byte(`{"model":{}}`[i : i+1]))
			http.NewResponseController(w).Flush()
		}
		return true
	}, func(took time.Duration, err error, _ []string) {
		if err != nil || took != 4*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestDir_AHubThatHangsIsLeftAlone: who asks soon after somebody waited for nothing is told
// at once, for half a minute.
func TestDir_AHubThatHangsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var hangs atomic.Bool
		hangs.Store(true)
		f.hook = func(w http.ResponseWriter, r *http.Request) bool {
			hung := hangs.Load()
			if hung {
				<-r.Context().Done()
			}
			return hung
		}
		h := New(f.config(t, t.TempDir()))
		ask := func(id string, want time.Duration) error {
			t.Helper()
			start := time.Now()
			_, err := h.Dir(t.Context(), id, "")
			if took := time.Since(start); took != want {
				t.Errorf("%s: %v after %v, want %v", id, err, took, want)
			}
			return err
		}
		ask("acme/other", 3*headStall+1500*time.Millisecond)
		hangs.Store(false)
		if err := ask(model, 0); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%v", err)
		}
		time.Sleep(awayFor)
		if err := ask(model, 0); err != nil {
			t.Error(err)
		}
	})
}

// A cached snapshot stands in for a hub that does not help, at once and not in silence.
func TestDir_FallsBackToTheCache(t *testing.T) {
	check := func(name string, timeout, want time.Duration, hook func(http.ResponseWriter, *http.Request) bool) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			cache, snapshot := engineCache(t)
			f.hook = hook
			c := f.config(t, cache)
			var notices []string
			c.Notice = func(s string) { notices = append(notices, s) }
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			start := time.Now()
			d, err := New(c).Dir(ctx, model, "")
			if err != nil || d != snapshot || time.Since(start) != want {
				t.Errorf("%s: %s, %v after %v", name, d, err, time.Since(start))
			}
			if len(notices) != 1 || !strings.Contains(notices[0], "model acme/tiny: using the cached snapshot "+commitA) {
				t.Errorf("%s: notices %q", name, notices)
			}
		})
	}
	status := func(status int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(status); return true }
	}
	stall := func(w http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	check("server error", time.Hour, 0, status(503))
	check("too many requests", time.Hour, 0, status(429))
	check("no access", time.Hour, 0, status(401))
	check("not a hub", time.Hour, 0, status(200))
	check("stalled", time.Hour, headStall, stall)
	check("deadline", time.Second, time.Second, stall)
	check("a commit whose files cannot be had", time.Hour, 1500*time.Millisecond, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			w.WriteHeader(503)
			return true
		}
		w.Header().Set("X-Repo-Commit", commitB)
		return true
	})
}

func TestDir_DoesNotFallBackOnAPlainNo(t *testing.T) {
	f := newFake()
	cache, _ := engineCache(t)
	h := New(f.config(t, cache))
	f.hook = func(w http.ResponseWriter, r *http.Request) bool {
		deny(w, http.StatusNotFound, "RevisionNotFound")
		return true
	}
	_, err := h.Dir(t.Context(), model, "")
	wants(t, err, `no revision "main"`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Dir(ctx, model, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A snapshot that is not whole must not look whole: tokenizer.json arrives last.
func TestDir_ABrokenDownloadLeavesNoSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, cache := newFake(), t.TempDir()
		h := New(f.config(t, cache))
		f.hook = func(w http.ResponseWriter, r *http.Request) bool {
			broken := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/config.json")
			if broken {
				w.WriteHeader(503)
			}
			return broken
		}
		for range 2 {
			for _, revision := range []string{"main", commitA} {
				_, err := h.Dir(t.Context(), model, revision)
				wants(t, err, "fetch config.json")
			}
		}
		if isFile(filepath.Join(cache, "models--acme--tiny/refs/main")) {
			t.Error("the ref names a snapshot that is not whole")
		}
		f.hook = nil
		dir(t, h, "main")
	})
}

func TestDir_DoesNotShowSignedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.config(t, t.TempDir())
		c.Token = secret
		h := New(c)
		f.hook = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", "http://cdn .test/?Signature=s3cr3t")
			w.WriteHeader(http.StatusFound)
			return true
		}
		_, err := h.Dir(t.Context(), model, "")
		wants(t, err, "unusable address")
		f.hook = nil
		c.Client.Transport = refusing{c.Client.Transport}
		_, err = New(c).Dir(t.Context(), model, "")
		wants(t, err, "cdn.test", "connection refused by test")
	})
}

type refusing struct{ http.RoundTripper }

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == "cdn.test" {
		return nil, errors.New("connection refused by test")
	}
	return r.RoundTripper.RoundTrip(req)
}
