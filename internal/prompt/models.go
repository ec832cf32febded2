package prompt

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/openai"
)

const (
	// maxServed bounds the models that are known by name.
	maxServed = 1024
	// maxOrigins bounds the paths and ids that workers name for the files of one model.
	maxOrigins = 4
	// goneAfter is how long a style counts that no worker has said to serve a model with,
	// while workers of another style do.
	goneAfter = 2 * time.Minute
	// forgetAfter is how long a model is known that no worker has said to serve.
	forgetAfter = time.Hour
)

// ModelsConfig says where tokenizer files are; zero values are the defaults.
type ModelsConfig struct {
	// Paths maps a served model to its directory or Hugging Face id; "" as a value makes
	// none for it. A model that is absent has that of the key "*", else what its worker
	// says at /v1/models.
	Paths map[string]string
	// Find returns the directory of a path or id; nil knows none. It may take long.
	Find       func(ctx context.Context, ref string) (dir string, err error)
	Now        func() time.Time // of templates that print the date; nil is time.Now
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Models are the models for which this process makes tokens itself. A model is used once
// its files are loaded, for the requests whose tokens are those of the engine, as far as
// that can tell. Safe for concurrent use; a nil *Models has none.
type Models struct {
	cfg     ModelsConfig
	metrics *modelMetrics
	wake    chan struct{}
	loads   chan struct{}                        // holds one for each directory that is being read
	list    atomic.Pointer[map[string][]*served] // by name, then style; replaced with mu held
	mu      struct {
		sync.Mutex
		loaded map[string]*files // by real directory: models may share one
		busy   int               // models that are being refreshed
	}
}

// served is one model under the name that requests use, as the workers of one style have
// it.
type served struct {
	name    string
	style   Style
	use     atomic.Pointer[usable]
	offered atomic.Int64 // when a worker last said that it serves it, unix ns

	// Of Models.mu.
	origins []*origin // the one in use first
	due     time.Time
	busy    bool // it is being refreshed, and
	again   bool // must be once more
	fails   int  // in a row
}

// origin is where a model's files may be.
type origin struct {
	ref string
	dir string  // the real directory of ref, of Models.mu
	use *usable // what was found there; of who refreshes the model
}

// NewModels returns a Models that knows no model yet. Run does the work.
func NewModels(cfg ModelsConfig) *Models {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Models{cfg: cfg, metrics: newModelMetrics(cfg.Registerer), wake: make(chan struct{}, 1), loads: make(chan struct{}, loadsAtOnce)}
	m.mu.loaded = make(map[string]*files)
	m.list.Store(&map[string][]*served{})
	return m
}

// Offer says that a worker serves a model: root is the path or id that it was started
// with, "" where it does not say. Repeating it costs nothing.
func (m *Models) Offer(name, root string, style Style) {
	if m == nil {
		return
	}
	ref, set := m.configured(name)
	if !set && strings.Contains(root, "/") { // a bare name says nothing of where files are
		ref = root
	}
	if ref == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.servedLocked(name, style)
	if s == nil {
		return
	}
	s.offered.Store(time.Now().UnixNano())
	if slices.ContainsFunc(s.origins, func(p *origin) bool { return p.ref == ref }) {
		return
	}
	full := len(s.origins) == maxOrigins
	if full {
		s.origins = slices.Delete(s.origins, 1, 2)
	}
	s.origins = append(s.origins, &origin{ref: ref})
	if u := s.use.Load(); full || u.model != nil && !u.degraded {
		return // it waits for its turn: the model has a place that works, or many that do not
	}
	s.due, s.again = time.Time{}, true
	m.poke()
}

// configured returns what Config.Paths says of a model.
func (m *Models) configured(name string) (ref string, set bool) {
	if ref, set = m.cfg.Paths[name]; !set {
		ref, set = m.cfg.Paths["*"]
	}
	return ref, set
}

// poke makes Run look for work.
func (m *Models) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// servedLocked returns a model of a style, a new one where there is none, and nil where
// there are too many.
func (m *Models) servedLocked(name string, style Style) *served {
	list := *m.list.Load()
	for _, s := range list[name] {
		if s.style == style {
			return s
		}
	}
	if len(list) >= maxServed && list[name] == nil {
		return nil
	}
	s := &served{name: name, style: style}
	s.use.Store(&usable{why: "its tokenizer is being loaded"})
	next := maps.Clone(list)
	next[name] = append(slices.Clone(list[name]), s)
	slices.SortFunc(next[name], func(a, b *served) int { return cmp.Compare(a.style, b.style) })
	m.list.Store(&next)
	return s
}

// current returns a model in the styles that its workers have.
func (m *Models) current(name string) []*served {
	all := (*m.list.Load())[name]
	if len(all) < 2 {
		return all
	}
	last := int64(0)
	for _, s := range all {
		last = max(last, s.offered.Load())
	}
	return slices.DeleteFunc(slices.Clone(all), func(s *served) bool { return last-s.offered.Load() > int64(goneAfter) })
}

// of returns the model to make a request's tokens with, or why there is none. Where
// workers of several styles serve it, the first style counts whose tokens are right.
func (m *Models) of(name string, req *openai.Request) (u *usable, why string) {
	if m == nil {
		return nil, ""
	}
	for _, s := range m.current(name) {
		u := s.use.Load()
		switch off := u.off[classOf(req)]; {
		case u.model == nil:
			why = cmp.Or(why, u.why)
		case off != "":
			why = cmp.Or(why, off)
		default:
			return u, ""
		}
	}
	return nil, why
}

// Degraded says which models have tokenizer files that are of no use, and why.
func (m *Models) Degraded() []string {
	if m == nil {
		return nil
	}
	var out []string
	for name := range *m.list.Load() {
		for _, s := range m.current(name) {
			if u := s.use.Load(); u.degraded {
				out = append(out, fmt.Sprintf("model %s: %s", name, u.why))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Describe says where a model's tokens come from; "" where there are no files for it.
func (m *Models) Describe(name string) string {
	if m == nil {
		return ""
	}
	var u *usable
	for _, s := range m.current(name) {
		if v := s.use.Load(); u == nil || v.better(u) {
			u = v
		}
	}
	switch {
	case u == nil:
		return ""
	case u.model == nil:
		return "not local: " + u.why
	case u.why == "" && u.note == "":
		return "local, compared with the engine: " + u.model.dir
	}
	return "local: " + u.model.dir + ": " + cmp.Or(u.why, u.note)
}
