package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
)

// The results of a check.
const (
	CheckOK   = "ok"
	CheckWarn = "warn" // it works, but not as well as it could, or could not be seen
	CheckFail = "fail"
)

// Finding is the result of one check of one worker.
type Finding struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warn or fail
	Text   string `json:"text"`   // what was seen and, where it is not ok, the engine's flag that mends it
}

// Diagnosis is what Doctor found out about one worker.
type Diagnosis struct {
	Worker   string    `json:"worker"`
	URL      string    `json:"url"`
	Findings []Finding `json:"findings"`

	model, root string
	tokens      uint64 // hash of the token ids of doctorChat; 0: unknown
}

// Failed tells whether a check failed.
func (d *Diagnosis) Failed() bool {
	return slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Result == CheckFail })
}

func (d *Diagnosis) add(check, result, format string, args ...any) {
	d.Findings = append(d.Findings, Finding{check, result, fmt.Sprintf(format, args...)})
}

// doctorWorkers is how many workers are checked at once.
const doctorWorkers = 16

// Doctor checks workers as a Fleet would use them, and compares those that serve the same
// model. It takes some ten seconds, and as long as tokenizer files that have to be fetched.
func Doctor(ctx context.Context, workers []WorkerConfig, cfg DoctorConfig) ([]Diagnosis, error) {
	m, _ := newMetrics(nil)
	f := &Fleet{metrics: m, cfg: FleetConfig{Workers: workers}}
	f.cfg.setDefaults()
	if err := validateWorkers(workers); err != nil {
		return nil, err
	}
	list := make([]Diagnosis, len(workers))
	slots := make(chan struct{}, doctorWorkers)
	var wg sync.WaitGroup
	for i, worker := range workers {
		w, err := f.newWorker(worker, false)
		if err != nil {
			return nil, err
		}
		list[i] = Diagnosis{Worker: w.id, URL: w.base.url}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			defer w.pool.close()
			w.diagnose(ctx, &list[i], cfg)
		})
	}
	wg.Wait()
	for i := range list {
		list[i].compare(list[:i])
	}
	return list, ctx.Err()
}

// diagnose runs all checks of one worker.
func (w *Worker) diagnose(ctx context.Context, d *Diagnosis, cfg DoctorConfig) {
	facts, err := w.probe(ctx)
	if err != nil {
		d.add("reach", CheckFail, "%v", err)
		return
	}
	w.mu.facts = facts
	d.add("reach", CheckOK, "it answers at %s", w.base.url)
	w.checkEngine(ctx, d, facts)
	checkCache(d, facts)

	idle := make(chan Finding, 1)
	go func() { idle <- w.checkKeepAlive(ctx, facts.health) }() // waited for below
	feed := w.listen(ctx, facts)
	w.checkTokens(ctx, d, facts)
	w.checkLocal(ctx, d, facts, cfg.Models)
	blocks := 0
	if cfg.Generate {
		feed.ready(ctx)
		blocks = w.checkUsage(ctx, d, facts)
	} else {
		d.add("cached tokens", CheckWarn, "not checked: --no-generate")
	}
	feed.report(ctx, d, facts, blocks)
	d.Findings = append(d.Findings, <-idle)
}

func (w *Worker) checkEngine(ctx context.Context, d *Diagnosis, f *facts) {
	switch {
	case f.engine == EngineOpenAI && w.cfg.Engine == "":
		d.add("engine", CheckWarn, "neither vLLM, SGLang nor llama.cpp: prompts are matched by text, and nothing is known of its cache")
	default:
		d.add("engine", CheckOK, "%s %s", f.engine, f.version)
	}
	if err := w.checkPath(ctx, f.health); err != nil {
		d.add("health", CheckFail, "%v", err)
	} else {
		d.add("health", CheckOK, "%s is good", f.health)
	}
	d.model = f.baseModel()
	for _, m := range f.models {
		if m.ID != d.model {
			continue
		}
		d.root = m.Root
		text := m.ID
		if m.Root != "" && m.Root != m.ID {
			text += ", root " + m.Root
		}
		if m.MaxModelLen > 0 {
			text += fmt.Sprintf(", up to %d tokens", m.MaxModelLen)
		}
		if n := len(f.models) - 1; n > 0 {
			text += fmt.Sprintf(", and %d more names", n)
		}
		d.add("model", CheckOK, "%s", text)
	}
}

// checkCache reads from the probe what the engine says of its cache.
func checkCache(d *Diagnosis, f *facts) {
	off := ""
	for _, flag := range []string{vllmCachingFlag, sglangRadixFlag} {
		if slices.Contains(f.flags, flag) {
			off = flag
		}
	}
	switch {
	case off != "":
		d.add("prefix caching", CheckFail, "%s", off)
	case f.engine == EngineVLLM || f.engine == EngineSGLang:
		d.add("prefix caching", CheckOK, "on, %d tokens of capacity", f.capacityTokens*max(f.ranks, 1))
	}
	switch {
	case slices.Contains(f.flags, sglangPageFlag):
		d.add("block size", CheckFail, "%s", sglangPageFlag)
	case f.blockSize > 0:
		d.add("block size", CheckOK, "%d tokens", f.blockSize)
	case f.engine == EngineVLLM || f.engine == EngineSGLang:
		d.add("block size", CheckWarn, "the engine does not tell: it is learned from its KV events, or set block_size for this worker")
	}
}

// doctorChat is the conversation whose token ids are compared between workers.
const doctorChat = `"messages":[{"role":"system","content":"You are a doctor."},{"role":"user","content":"Naïve café — 12,345 tokens? 你好"},{"role":"assistant","content":"Yes."},{"role":"user","content":"Thanks."}]`

func (w *Worker) checkTokens(ctx context.Context, d *Diagnosis, f *facts) {
	if f.engine == EngineOpenAI {
		return // said already
	}
	name, _ := json.Marshal(d.model) // a string has JSON
	t, err := w.tokenize(ctx, openai.Chat, fmt.Appendf(nil, `{"model":%s,%s}`, name, doctorChat))
	if err != nil {
		d.add("tokens", CheckWarn, "no token ids, so prompts are matched by text: %v", err)
		return
	}
	h := fnv.New64a()
	for _, id := range t.IDs {
		_, _ = h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
	}
	d.tokens = h.Sum64()
	way := tokenWays[f.engine][openai.Chat][w.tok.kinds[openai.Chat].used.Load()-1]
	d.add("tokens", CheckOK, "%s: a chat of 4 messages has %d tokens", way.name, len(t.IDs))
}

// keepAliveFix names what lengthens the idle life of a connection to an engine.
var keepAliveFix = map[string]string{
	EngineVLLM:   "start vLLM with VLLM_HTTP_TIMEOUT_KEEP_ALIVE=5 or more in its environment",
	EngineSGLang: "start SGLang with SGLANG_TIMEOUT_KEEP_ALIVE=5 or more in its environment",
}

// checkKeepAlive tells whether an idle connection lives as long as the proxy keeps it.
func (w *Worker) checkKeepAlive(ctx context.Context, path string) Finding {
	f := Finding{Check: "keep-alive", Result: CheckWarn}
	alone, err := w.f.newWorker(*w.cfg, false)
	if err != nil {
		f.Text = err.Error()
		return f
	}
	defer alone.pool.close()
	if _, _, err := alone.fetch(ctx, fasthttp.MethodGet, path, nil); err != nil {
		f.Text = err.Error()
		return f
	}
	fix := keepAliveFix[w.engine()]
	if fix == "" {
		fix = "lengthen the keep-alive time of the server or of what is in front of it"
	}
	c := alone.pool.pop()
	if c == nil {
		f.Text = "it closes the connection after each answer, so every request pays for a new one: " + fix
		return f
	}
	defer alone.pool.discard(c)
	wait := time.NewTimer(idleLife)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		f.Text = "not checked"
		return f
	case <-wait.C:
	}
	if !c.pulse.alive() {
		f.Text = fmt.Sprintf("it closes idle connections within %v, so requests meet dying ones: %s", idleLife, fix)
		return f
	}
	f.Result, f.Text = CheckOK, fmt.Sprintf("an idle connection lives longer than the %v for which it is kept", idleLife)
	return f
}

// checkUsage sends one prompt twice and reads what the engine says of its cache. It
// returns the number of whole blocks that the prompt has at least.
func (w *Worker) checkUsage(ctx context.Context, d *Diagnosis, f *facts) (blocks int) {
	const check = "cached tokens"
	size := min(max(f.blockSize, 64), 1024)
	body := doctorPrompt(d.model, 4*size)
	var cached int
	for range 2 {
		code, answer, err := w.fetch(ctx, fasthttp.MethodPost, "/v1/chat/completions", body)
		if err == nil && code != fasthttp.StatusOK {
			err = fmt.Errorf("worker %s: /v1/chat/completions answers %d", w.id, code)
		}
		if err != nil {
			d.add("generation", CheckFail, "%v", err)
			return 0
		}
		var seen openai.Stream
		_ = openai.ParseResponse(answer, 1, &seen) // what cannot be read has no usage
		cached = seen.UsageOrNone().CachedTokens
	}
	d.add("generation", CheckOK, "one token each of one prompt, twice")
	flag := cacheReportFlag[f.engine]
	switch {
	case cached > 0:
		d.add(check, CheckOK, "%d tokens of the second prompt were cached, and usage says so", cached)
	case cached < 0 && flag != "":
		d.add(check, CheckFail, "%s", flag)
	case cached < 0:
		d.add(check, CheckWarn, "usage has no cached_tokens, so reuse cannot be measured here")
	case flag != "":
		d.add(check, CheckFail, "no token of the same prompt was cached the second time: is prefix caching on?")
	default:
		d.add(check, CheckWarn, "no token of the same prompt was cached the second time")
	}
	return 4
}

// doctorPrompt returns a chat request for one token whose prompt has at least so many
// tokens and was never sent before.
func doctorPrompt(model string, tokens int) []byte {
	name, _ := json.Marshal(model) // a string has JSON
	var text strings.Builder
	fmt.Fprintf(&text, "Check %x.", rand.Uint64())
	for i := range tokens {
		fmt.Fprintf(&text, " w%d", i)
	}
	return fmt.Appendf(nil, `{"model":%s,"messages":[{"role":"user","content":"%s"}],"max_tokens":1,"temperature":0,"stream":false}`, name, text.String())
}

// compare looks for workers of the same model that do not agree with d.
func (d *Diagnosis) compare(others []Diagnosis) {
	for i := range others {
		o := &others[i]
		if d.model == "" || o.model != d.model {
			continue
		}
		if d.root != "" && o.root != "" && d.root != o.root {
			d.add("same model", CheckWarn, "%s serves %s from %s, this one from %s: name them differently if they are not the same weights (--served-model-name)", o.Worker, d.model, o.root, d.root)
		}
		if d.tokens != 0 && o.tokens != 0 && d.tokens != o.tokens {
			d.add("same tokens", CheckFail, "the same chat has other token ids than on %s: start both with the same tokenizer and the same --chat-template", o.Worker)
		}
		return // those after it are compared with it too
	}
}
