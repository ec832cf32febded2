package prompt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// bosEngine puts a token before completions that the model does not.
type bosEngine struct{ modelEngine }

func (e *bosEngine) Tokenize(ctx context.Context, name string, kind openai.Kind, body []byte) (Tokens, error) {
	t, err := e.modelEngine.Tokenize(ctx, name, kind, body)
	if err == nil && kind == openai.Completions {
		t.IDs = append([]uint32{1}, t.IDs...)
	}
	return t, err
}

// TestModels_EachClassHasItsVerdict: what is wrong with completions is not wrong with
// chats, and what the engine does not say later takes back nothing of it.
func TestModels_EachClassHasItsVerdict(t *testing.T) {
	e := &bosEngine{modelEngine{model: loadFamily(t, "qwen3")}}
	synctest.Test(t, func(t *testing.T) {
		m := NewModels(ModelsConfig{Find: findDir, Now: goldenNow})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- m.Run(ctx, func(Style) Source { return e }) }()
		m.Offer("m", filepath.Join(families, "qwen3"), StyleVLLM)
		synctest.Wait()
		judge := func(when string) {
			t.Helper()
			for _, c := range []struct {
				req  openai.Request
				good bool
			}{{openai.Request{Kind: openai.Completions}, false}, {openai.Request{Kind: openai.Chat}, true}, {openai.Request{Kind: openai.Chat, Tools: true}, true}} {
				if u, why := m.of("m", &c.req); (u != nil) != c.good || !c.good && !strings.Contains(why, "a completion: token 0") {
					t.Errorf("%s: %v, tools %v: usable %v, %q", when, c.req.Kind, c.req.Tools, u != nil, why)
				}
			}
			if len(m.Degraded()) != 1 {
				t.Errorf("%s: degraded %q", when, m.Degraded())
			}
		}
		judge("at first")
		e.set(nil)
		time.Sleep(2*checkAgain + time.Second)
		judge("with the engine away")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func findDir(_ context.Context, ref string) (string, error) {
	if _, err := os.Stat(ref); err != nil {
		return "", errors.New("no files of it are here")
	}
	return ref, nil
}

// TestModels_AStyleIsComparedWithItsOwnEngine: workers of two engines under one name are
// each compared with their like, as often as one alone, and what is known of one style is
// not lost while the other is heard of.
func TestModels_AStyleIsComparedWithItsOwnEngine(t *testing.T) {
	sglang := &modelEngine{model: loadFamily(t, "qwen3"), style: StyleSGLang}
	vllm := &modelEngine{model: changed(t, "qwen3", "<tools>", "<tool>"), others: map[Style]*modelEngine{StyleSGLang: sglang}}
	dir := filepath.Join(families, "qwen3")
	withModels(t, ModelsConfig{}, vllm, func(m *Models) {
		for range 41 { // 20 minutes of probes
			m.Offer("m", dir, StyleVLLM)
			m.Offer("m", dir, StyleSGLang)
			synctest.Wait()
			time.Sleep(30 * time.Second)
		}
		for style, e := range map[Style]*modelEngine{StyleVLLM: vllm, StyleSGLang: sglang} {
			if n, want := e.asked(), 3*len(checksOf(style)); n != want {
				t.Errorf("style %d: %d calls in 20 minutes, want %d", style, n, want)
			}
		}
		if d := m.Degraded(); len(d) != 1 {
			t.Errorf("degraded %q", d)
		}
		style := func(tools bool) string {
			u, why := m.of("m", &openai.Request{Tools: tools})
			if u == nil {
				return why
			}
			return fmt.Sprint(u.style)
		}
		if a, b := style(false), style(true); a != fmt.Sprint(StyleVLLM) || b != fmt.Sprint(StyleSGLang) {
			t.Errorf("chats in style %s, with tools %s", a, b)
		}
		// The SGLang workers go, then the vLLM tokenizers: nothing is forgotten of them.
		vllm.set(nil)
		for range 40 {
			m.Offer("m", dir, StyleVLLM)
			time.Sleep(30 * time.Second)
		}
		if a, b := style(false), style(true); a != fmt.Sprint(StyleVLLM) || !strings.Contains(b, "token ") {
			t.Errorf("chats in style %s, with tools %s", a, b)
		}
	})
}

// TestModels_AHangingLookupDelaysNoOther: lookups run side by side, but not all at once,
// and one that keeps failing is tried less and less often.
func TestModels_AHangingLookupDelaysNoOther(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	var tries []time.Duration
	e := &modelEngine{model: loadFamily(t, "qwen3")}
	var from time.Time
	find := func(ctx context.Context, ref string) (string, error) {
		if strings.HasPrefix(ref, "broken/") {
			mu.Lock()
			tries = append(tries, time.Since(from).Round(time.Second))
			mu.Unlock()
			return "", errors.New("the hub is away")
		}
		if !strings.HasPrefix(ref, "hang/") {
			return findDir(ctx, ref)
		}
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() { mu.Lock(); now--; mu.Unlock() }()
		select {
		case <-time.After(3 * time.Minute):
		case <-ctx.Done():
		}
		return "", errors.New("it hangs")
	}
	withModels(t, ModelsConfig{Find: find}, e, func(m *Models) {
		from = time.Now()
		m.Offer("hang", "hang/0", StyleVLLM)
		m.Offer("broken", "broken/1", StyleVLLM)
		synctest.Wait()
		m.Offer("m", filepath.Join(families, "qwen3"), StyleVLLM)
		synctest.Wait()
		if p := m.ask(t, "m", false); time.Since(from) > 0 || p.Source != kv.SourceLocal {
			t.Errorf("source %v after %v: %s", p.Source, time.Since(from), p.Reason)
		}
		time.Sleep(36*time.Minute + time.Second)
		for n := range 3 * refreshesAtOnce {
			m.Offer(fmt.Sprint("hang", n), fmt.Sprint("hang/", n), StyleVLLM)
		}
		time.Sleep(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		var minutes []float64
		for _, d := range tries[:6] {
			minutes = append(minutes, d.Minutes())
		}
		if want := []float64{0, 1, 3, 7, 15, 25}; !slices.Equal(minutes, want) {
			t.Errorf("tried after %v minutes, want %v", minutes, want)
		}
		if most != refreshesAtOnce {
			t.Errorf("%d lookups at once, want %d", most, refreshesAtOnce)
		}
	})
}

// copyFamily copies a family's files to a new directory.
func copyFamily(t *testing.T, family string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(families, family))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func writeText(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestModels_RepairedFilesAreRead: files that changed are read again, whether they differed
// before or could not be read; until then, and where they are broken now, what was loaded
// serves.
func TestModels_RepairedFilesAreRead(t *testing.T) {
	right := loadFamily(t, "qwen3").tok.Config().ChatTemplates[0].Source
	for _, wrong := range []string{right + "x", "{% if"} {
		e := &modelEngine{model: loadFamily(t, "qwen3")}
		dir := copyFamily(t, "qwen3")
		writeText(t, dir, "chat_template.jinja", wrong)
		withModels(t, ModelsConfig{Paths: map[string]string{"m": dir}}, e, func(m *Models) {
			local := func(when string, want bool) {
				t.Helper()
				synctest.Wait()
				p := m.ask(t, "m", false)
				if (p.Source == kv.SourceLocal) != want || (len(m.Degraded()) == 0) != want {
					t.Errorf("%.5s: %s: source %v: %q, %q", wrong, when, p.Source, p.Reason, m.Degraded())
				}
			}
			m.Offer("m", "", StyleVLLM)
			local("at first", false)
			calls := e.asked()
			time.Sleep(3*tryAgain + time.Second)
			if e.asked() != calls {
				t.Errorf("%.5s: %d calls of the engine about files that did not change", wrong, e.asked()-calls)
			}
			writeText(t, dir, "chat_template.jinja", right)
			time.Sleep(tryAgain)
			local("repaired", true)
			first := m.first("m")
			writeText(t, dir, "chat_template.jinja", "{% if {")
			time.Sleep(checkAgain)
			local("broken again", true)
			if d := m.Describe("m"); m.first("m") != first || !strings.Contains(d, "cannot be read again") {
				t.Errorf("%q", d)
			}
			writeText(t, dir, "chat_template.jinja", right+"{# #}")
			time.Sleep(tryAgain)
			local("repaired again", true)
			if u := m.first("m"); u == first || u.id == first.id || !strings.Contains(m.Describe("m"), "compared with") {
				t.Error("the repaired files were not read, or count as the old ones in the caches")
			}
		})
	}
}

func (m *Models) first(name string) *Model { return (*m.list.Load())[name][0].use.Load().model }

// TestModels_ADirectoryIsLoadedOnceAndDropped: whatever names and paths lead to it, and
// until the last model is gone that has it.
func TestModels_ADirectoryIsLoadedOnceAndDropped(t *testing.T) {
	e := &modelEngine{model: loadFamily(t, "qwen3")}
	dir := copyFamily(t, "qwen3")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	withModels(t, ModelsConfig{}, e, func(m *Models) {
		m.Offer("a", dir, StyleVLLM)
		m.Offer("b", dir+"/./", StyleVLLM)
		m.Offer("c", link, StyleSGLang)
		m.Offer("d", filepath.Join(families, "llama3"), StyleVLLM)
		synctest.Wait()
		loaded := func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.mu.loaded)
		}
		if m.first("a") == nil || m.first("a") != m.first("b") || m.first("b") != m.first("c") || loaded() != 2 {
			t.Errorf("%d directories are loaded, want 2", loaded())
		}
		for range 2 * forgetAfter / time.Minute { // d is served no more
			m.Offer("a", dir, StyleVLLM)
			time.Sleep(time.Minute)
		}
		if n := loaded(); n != 1 || m.Describe("d") != "" || m.Describe("a") == "" {
			t.Errorf("%d directories are loaded, want 1", n)
		}
		time.Sleep(forgetAfter + 2*checkAgain)
		if n := loaded(); n != 0 || len(*m.list.Load()) != 0 {
			t.Errorf("%d directories are loaded, %d models known, want none", n, len(*m.list.Load()))
		}
	})
}

// TestModels_OneOfManyPlaces: the place that works is found among several, without asking
// the engine at every probe.
func TestModels_OneOfManyPlaces(t *testing.T) {
	e := &modelEngine{model: loadFamily(t, "qwen3")}
	wrong := changed(t, "qwen3", "<|im_end|>", "<|im_end|> ").dir
	withModels(t, ModelsConfig{}, e, func(m *Models) {
		m.Offer("m", wrong, StyleVLLM)
		synctest.Wait()
		for range 20 {
			for _, root := range []string{"/not/here", wrong, filepath.Join(families, "llama3")} {
				m.Offer("m", root, StyleVLLM)
				synctest.Wait()
			}
			time.Sleep(30 * time.Second)
		}
		if n := e.asked(); n > 3*len(checksOf(StyleVLLM)) {
			t.Errorf("%d calls for 2 places in 10 minutes, want at most %d", n, 3*len(checksOf(StyleVLLM)))
		}
		m.Offer("m", filepath.Join(families, "qwen3"), StyleVLLM)
		synctest.Wait()
		if p := m.ask(t, "m", false); p.Source != kv.SourceLocal || len(m.Degraded()) > 0 {
			t.Errorf("source %v: %s", p.Source, p.Reason)
		}
	})
}

// TestModels_ASlowEngineIsAskedOnce: a comparison ends with the first call that times out.
func TestModels_ASlowEngineIsAskedOnce(t *testing.T) {
	calls := 0
	slow := sourceFunc(func(ctx context.Context) (Tokens, error) { calls++; <-ctx.Done(); return Tokens{}, ctx.Err() })
	synctest.Test(t, func(t *testing.T) {
		m := NewModels(ModelsConfig{Find: findDir, Now: goldenNow})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- m.Run(ctx, func(Style) Source { return slow }) }()
		m.Offer("m", filepath.Join(families, "qwen3"), StyleVLLM)
		time.Sleep(checkTimeout + time.Second)
		if d := m.Describe("m"); calls != 1 || !strings.Contains(d, "not compared") {
			t.Errorf("%d calls, %q", calls, d)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type sourceFunc func(ctx context.Context) (Tokens, error)

func (f sourceFunc) Tokenize(ctx context.Context, _ string, _ openai.Kind, _ []byte) (Tokens, error) {
	return f(ctx)
}
