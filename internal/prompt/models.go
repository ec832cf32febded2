package prompt

import (
	"context"
	"errors"
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
	// checkAgain is how often a model that is in use is compared with its engine.
	checkAgain = 10 * time.Minute
	// tryAgain is how soon files that could not be had are looked for again.
	tryAgain = time.Minute
	// checkTimeout bounds one call of the engine in a comparison.
	checkTimeout = 5 * time.Second
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
// its files are loaded and its tokens are those of the engine, as far as that can tell.
// Safe for concurrent use; a nil *Models has none.
type Models struct {
	cfg     ModelsConfig
	metrics *modelMetrics
	wake    chan struct{}
	list    atomic.Pointer[map[string]*served] // by name; replaced with mu held
	mu      struct {
		sync.Mutex
		loaded map[string]*Model // by directory: names may share one
	}
}

// served is one model under the name that requests use.
type served struct {
	name string
	use  atomic.Pointer[usable]

	// Of Models.mu.
	root  string
	style Style
	due   time.Time // of the next attempt or comparison
}

// usable is a model and what is known of its tokens.
type usable struct {
	model        *Model // nil where there is none
	style        Style
	plain, tools bool // tokens of requests without and with tools are those of the engine
	compared     bool // the engine said so
	why          string
	degraded     bool // somebody should look at it
}

// NewModels returns a Models that knows no model yet. Run does the work.
func NewModels(cfg ModelsConfig) *Models {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Models{cfg: cfg, metrics: newModelMetrics(cfg.Registerer), wake: make(chan struct{}, 1)}
	m.mu.loaded = make(map[string]*Model)
	m.list.Store(&map[string]*served{})
	return m
}

// Offer says that a worker serves a model: root is the path or id that it was started
// with, "" where it does not say. Repeating it costs nothing.
func (m *Models) Offer(name, root string, style Style) {
	if m == nil {
		return
	}
	ref, set := m.cfg.Paths[name]
	if !set {
		ref, set = m.cfg.Paths["*"]
	}
	if !set && strings.Contains(root, "/") { // a bare name says nothing of where files are
		ref = root
	}
	if ref == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := (*m.list.Load())[name]
	switch {
	case s == nil:
		if s = m.addLocked(name); s == nil {
			return
		}
	case s.style != style:
	case s.root == ref:
		return
	case !set:
		if u := s.use.Load(); u.model != nil && !u.degraded {
			return // another worker has the same model at another place
		}
	}
	s.root, s.style, s.due = ref, style, time.Time{}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// addLocked adds a name; nil where there are too many.
func (m *Models) addLocked(name string) *served {
	list := *m.list.Load()
	if len(list) >= maxServed {
		return nil
	}
	s := &served{name: name}
	s.use.Store(&usable{why: "its tokenizer is being loaded"})
	next := maps.Clone(list)
	next[name] = s
	m.list.Store(&next)
	return s
}

// of returns the model to make a request's tokens with, or why there is none.
func (m *Models) of(name string, req *openai.Request) (*usable, string) {
	if m == nil {
		return nil, ""
	}
	s := (*m.list.Load())[name]
	if s == nil {
		return nil, ""
	}
	u := s.use.Load()
	switch {
	case u.model == nil:
		return nil, u.why
	case req.Tools && !u.tools || !req.Tools && !u.plain:
		return nil, u.why
	}
	return u, ""
}

// Degraded says which models have tokenizer files that are of no use, and why.
func (m *Models) Degraded() []string {
	if m == nil {
		return nil
	}
	var out []string
	for name, s := range *m.list.Load() {
		if u := s.use.Load(); u.degraded {
			out = append(out, fmt.Sprintf("model %s: %s", name, u.why))
		}
	}
	slices.Sort(out)
	return out
}

// Describe says where a model's tokens come from; "" where there are no files for it.
func (m *Models) Describe(name string) string {
	if m == nil {
		return ""
	}
	s := (*m.list.Load())[name]
	if s == nil {
		return ""
	}
	u := s.use.Load()
	switch {
	case u.model == nil:
		return "not local: " + u.why
	case u.plain && u.tools && u.why == "":
		return "local, compared with the engine: " + u.model.dir
	}
	return "local: " + u.model.dir + ": " + u.why
}

// Run loads models and compares their tokens with those of engine until ctx ends.
func (m *Models) Run(ctx context.Context, engine Source) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		for ctx.Err() == nil {
			s, root, style := m.next()
			if s == nil {
				break
			}
			again := m.refresh(ctx, s, root, style, engine)
			m.mu.Lock()
			if s.root == root && s.style == style {
				s.due = time.Now().Add(again)
			}
			m.mu.Unlock()
		}
		timer.Reset(m.untilDue())
	}
}

// next returns a model that is due.
func (m *Models) next() (s *served, root string, style Style) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range *m.list.Load() {
		if !s.due.After(time.Now()) {
			return s, s.root, s.style
		}
	}
	return nil, "", 0
}

func (m *Models) untilDue() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := checkAgain
	for _, s := range *m.list.Load() {
		d = min(d, time.Until(s.due))
	}
	return max(d, 0)
}

// refresh loads a model if need be and compares it. It returns when to do it again.
func (m *Models) refresh(ctx context.Context, s *served, ref string, style Style, engine Source) time.Duration {
	old := s.use.Load()
	model, err := m.load(ctx, ref)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		m.put(s, &usable{why: shorten(err.Error()), degraded: m.cfg.Paths[s.name] != "" || m.cfg.Paths["*"] != ""})
		return tryAgain
	}
	u := m.compare(ctx, s.name, model, style, engine)
	if ctx.Err() != nil {
		return 0
	}
	again := checkAgain
	if !u.compared {
		again = tryAgain
		if (old.compared || old.degraded) && !u.degraded && old.model == model && old.style == style {
			u = old // what was found holds
		}
	}
	m.put(s, u)
	return again
}

// put replaces what is known of a model and says so once.
func (m *Models) put(s *served, u *usable) {
	old := s.use.Swap(u)
	m.metrics.local.WithLabelValues(s.name).Set(boolValue(u.model != nil && u.plain))
	if old.why == u.why && old.model == u.model && old.plain == u.plain && old.tools == u.tools {
		return
	}
	switch {
	case u.model == nil && u.degraded:
		m.cfg.Logger.Warn("model has no local tokenizer: its prompts are tokenized by the engine, else known as text", "model", s.name, "reason", u.why)
	case u.model == nil:
		m.cfg.Logger.Info("model has no local tokenizer: its prompts are tokenized by the engine, else known as text", "model", s.name, "reason", u.why)
	case u.degraded:
		m.cfg.Logger.Error("local tokens are not those of the engine: the engine's are used", "model", s.name, "dir", u.model.dir, "difference", u.why)
	default:
		m.cfg.Logger.Info("model is tokenized here", "model", s.name, "dir", u.model.dir, "vocabulary", u.model.tok.VocabSize(),
			"memory_bytes", u.model.tok.Bytes(), "note", u.why)
	}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var errNoFinder = errors.New("no tokenizer files are looked for")

func (m *Models) load(ctx context.Context, ref string) (*Model, error) {
	if m.cfg.Find == nil {
		return nil, errNoFinder
	}
	dir, err := m.cfg.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	model := m.mu.loaded[dir]
	m.mu.Unlock()
	if model != nil {
		return model, nil
	}
	from := time.Now()
	if model, err = LoadModel(dir); err != nil {
		return nil, err
	}
	model.Now = m.cfg.Now
	m.metrics.load.Observe(time.Since(from).Seconds())
	m.mu.Lock()
	m.mu.loaded[dir] = model
	m.mu.Unlock()
	return model, nil
}

// check is one request whose tokens are compared.
type check struct {
	name  string
	kind  openai.Kind
	tools bool
	body  string // behind {"model":…,
}

// checks cover what templates and tokenizers differ in. They hold no user's text.
var checks = []check{
	{"a completion", openai.Completions, false, `"prompt":"The quick brown fox, 12345 times:\n\n\tfunc main() {}  // ünïcödé 你好 🙂"}`},
	{"one message", openai.Chat, false, `"messages":[{"role":"user","content":"Hello, world! It's 2024."}]}`},
	{"a system message", openai.Chat, false, `"messages":[{"role":"system","content":"You are terse.\n"},{"role":"user","content":" Why?  "}]}`},
	{"a conversation", openai.Chat, false, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two\n\n"},{"role":"user","content":[{"type":"text","text":"three"},{"type":"text","text":"four"}]},{"role":"assistant","content":"five"},{"role":"user","content":"six"}]}`},
	{"reasoning in history", openai.Chat, false, `"messages":[{"role":"user","content":"one"},{"role":"assistant","reasoning":"hm","reasoning_content":"hm","content":"two"},{"role":"user","content":"three"}]}`},
	{"a reply as the last message", openai.Chat, false, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"}]}`},
	{"tools", openai.Chat, true, `"messages":[{"role":"user","content":"weather?"}],"tools":[` + checkTool + `]}`},
	{"a tool call", openai.Chat, true, `"messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Zürich\", \"days\": 3}"}}]},{"role":"tool","tool_call_id":"abcdefghi","content":"{\"temp\": 1.5}"}],"tools":[` + checkTool + `]}`},
}

// vllmChecks and sglangChecks are what only one of the engines can be asked: a reply that
// is continued, which SGLang takes without add_generation_prompt and vLLM with it, and what
// SGLang makes of messages and tools in its own way.
var (
	vllmChecks = []check{
		{"a continued reply", openai.Chat, false, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":" two and "}],"continue_final_message":true,"add_generation_prompt":false}`},
		{"a tool call without content", openai.Chat, true, `"messages":[{"role":"user","content":"time?"},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"get_time","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefghi","content":"noon"}],"tools":[` + checkOtherTool + `]}`},
	}
	sglangChecks = []check{
		{"a continued reply", openai.Chat, false, `"messages":[{"role":"user","content":"one"},{"role":"assistant","content":" two and "}],"continue_final_message":true}`},
		{"an empty list of tools", openai.Chat, false, `"messages":[{"role":"user","content":"one"}],"tools":[]}`},
		{"a named tool", openai.Chat, true, `"messages":[{"role":"user","content":"time?"}],"tools":[` + checkTool + `,` + checkOtherTool + `],"tool_choice":{"type":"function","function":{"name":"get_time"}}}`},
		{"no tool to choose", openai.Chat, true, `"messages":[{"role":"user","content":"time?"}],"tools":[` + checkTool + `],"tool_choice":"none"}`},
		{"a tool's answer in parts", openai.Chat, true, `"messages":[{"role":"user","content":"time?"},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":"get_time","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefghi","content":[{"type":"text","text":"noon"},{"type":"text","text":"sharp"}]}],"tools":[` + checkOtherTool + `]}`},
	}
)

// checksOf returns the checks for engines of a style.
func checksOf(style Style) []check {
	if style.sglang() {
		return slices.Concat(checks, sglangChecks)
	}
	return slices.Concat(checks, vllmChecks)
}

const checkOtherTool = `{"type":"function","function":{"parameters":{"type":"object","properties":{}},"name":"get_time"}}`

const checkTool = `{"type":"function","function":{"name":"get_weather","description":"Current weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","default":1}},"required":["city"]}}}`

// compare tokenises the checks here and on the engine.
func (m *Models) compare(ctx context.Context, name string, model *Model, style Style, engine Source) *usable {
	u := &usable{model: model, style: style, plain: true, tools: true}
	asked, unasked := 0, 0
	list := checksOf(style)
	for _, c := range list {
		body := append(openai.AppendString([]byte(`{"model":`), name), ',')
		body = append(body, c.body...)
		ours, err := model.Tokenize(c.kind, body, style)
		call, cancel := context.WithTimeout(ctx, checkTimeout)
		theirs, engineErr := engine.Tokenize(call, name, c.kind, body)
		cancel()
		var difference string
		switch {
		case engineErr != nil && err != nil:
			continue // both refuse it
		case engineErr != nil:
			m.metrics.checks.WithLabelValues("unasked").Inc()
			unasked++
			continue
		case err != nil:
			difference = err.Error()
		default:
			difference = differ(model, ours, theirs.IDs)
		}
		asked++
		if difference == "" {
			m.metrics.checks.WithLabelValues("equal").Inc()
			continue
		}
		m.metrics.checks.WithLabelValues("different").Inc()
		u.degraded = true
		u.tools = false
		if !c.tools {
			u.plain = false
		}
		if u.why == "" {
			u.why = fmt.Sprintf("%s: %s", c.name, difference)
		}
	}
	u.compared = asked > 0 && unasked == 0
	switch {
	case u.compared || u.degraded: // a difference is one, whatever was not asked
	case asked == 0:
		u.why = "the engine cannot be asked for tokens: not compared"
	default:
		u.why = fmt.Sprintf("the engine could not be asked for %d of %d requests: not compared in full", unasked, len(list))
	}
	return u
}

// differ tells the first difference of two token sequences; "" where there is none.
func differ(m *Model, ours, theirs []uint32) string {
	if slices.Equal(ours, theirs) {
		return ""
	}
	at := 0
	for at < len(ours) && at < len(theirs) && ours[at] == theirs[at] {
		at++
	}
	token := func(ids []uint32) string {
		if at >= len(ids) {
			return "none"
		}
		return fmt.Sprintf("%d %q", ids[at], m.tok.Decode(nil, ids[at:at+1]))
	}
	return strings.ToValidUTF8(fmt.Sprintf("token %d of %d is %s here and %s of %d on the engine", at, len(ours), token(ours), token(theirs), len(theirs)), "�")
}
