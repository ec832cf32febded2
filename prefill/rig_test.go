package prefill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// rig is a whole proxy without HTTP in a bubble of virtual time: the real router and
// index, simulated engines whose events reach the index 2 ms after a step, and the
// Prefiller under test. It must be made within synctest.Test and closed there.
type rig struct {
	t        testing.TB
	start    time.Time
	registry *prometheus.Registry // of the Prefiller
	routing  *prometheus.Registry // of the router
	index    *index.Set
	numbers  *kv.Workers
	router   *router.Router
	prefill  *Prefiller
	engines  map[string]*engine
	render   func(body []byte) []uint32 // the chat template and the tokenizer
	thinking bool                       // the template drops reasoning from history
	noTokens bool                       // prompts are known as text only
	stop     context.CancelFunc
	wg       sync.WaitGroup
	ctx      context.Context
	cfg      rigConfig
	specs    []router.WorkerSpec

	mu    sync.Mutex
	quiet bool
	lines []string // the log of what happened
	sent  []*Warmup
	// answer, when set, is what workers say to warm-ups instead of computing them.
	answer func(ctx context.Context) (Answer, error)
}

type rigConfig struct {
	Workers  int
	Feed     string // router.FeedComplete by default
	Engine   sim.EngineConfig
	Thinking bool
	NoTokens bool
	Prefill  Config // what is not needed is filled in
	Name     string // of the engine, "vllm" by default
	Copies   bool   // router.Config.Copies
	MaxQueue int    // router.Config.MaxQueue
}

func newRig(t testing.TB, cfg rigConfig) *rig {
	g := &rig{
		t: t, start: time.Now(), registry: prometheus.NewRegistry(), routing: prometheus.NewRegistry(), index: index.NewSet(index.Config{}), numbers: &kv.Workers{},
		engines: map[string]*engine{}, render: render, thinking: cfg.Thinking, noTokens: cfg.NoTokens,
	}
	g.router = router.New(router.Config{Index: g.index, Workers: g.numbers, Seed: 1, Registerer: g.routing, Copies: cfg.Copies, MaxQueue: cfg.MaxQueue})
	if cfg.Engine.BlockSize == 0 {
		cfg.Engine.BlockSize = 16
	}
	if cfg.Engine.CapacityTokens == 0 {
		cfg.Engine.CapacityTokens = 400_000
	}
	if cfg.Engine.MaxNumSeqs == 0 {
		cfg.Engine.MaxNumSeqs = 128
	}
	if cfg.Feed == "" {
		cfg.Feed = router.FeedComplete
	}
	if cfg.Name == "" {
		cfg.Name = "vllm"
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.ctx, g.cfg = ctx, cfg
	for range max(cfg.Workers, 1) {
		g.add()
	}
	pc := cfg.Prefill
	pc.Router, pc.Sender, pc.Identify, pc.Registerer = g.router, g, g.identify, g.registry
	if pc.Holdout == 0 {
		pc.Holdout = -1
	}
	if pc.Seed == 0 {
		pc.Seed = 1
	}
	g.prefill = New(pc)
	g.wg.Go(func() { _ = g.prefill.Run(ctx) })
	return g
}

// add starts one more engine, which the router knows and takes for healthy.
func (g *rig) add() string {
	i, cfg := len(g.specs), g.cfg
	id := fmt.Sprintf("w%d", i+1)
	ec := cfg.Engine
	ec.Seed = uint64(i)
	e := &engine{rig: g, sim: sim.NewEngine(ec), wake: make(chan struct{}, 1), translator: events.NewTranslator(events.TranslatorConfig{})}
	e.number = g.numbers.Hold(kv.WorkerRank{ID: id})
	e.silent = cfg.Feed == router.FeedNone
	g.mu.Lock()
	g.engines[id] = e
	g.mu.Unlock()
	g.specs = append(g.specs, router.WorkerSpec{
		ID: id, Models: []router.ModelSpec{{Name: "m"}}, Engine: cfg.Name,
		BlockSize: ec.BlockSize, CapacityTokens: ec.CapacityTokens, MaxNumSeqs: ec.MaxNumSeqs, Drafts: ec.Drafts,
	})
	g.wg.Go(func() { e.run(g.ctx) })
	g.router.SetWorkers(g.specs)
	g.router.SetFeed(kv.WorkerRank{ID: id}, router.Feed{State: cfg.Feed, BlockSize: cfg.Engine.BlockSize})
	return id
}

// engine returns the engine of a worker.
func (g *rig) engine(worker string) *engine {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.engines[worker]
}

// close ends everything and checks that nothing is left behind.
func (g *rig) close() {
	g.t.Helper()
	g.stop()
	g.wg.Wait()
	for _, s := range g.router.Status() {
		if s.Inflight != 0 || s.BacklogTokens != 0 || s.KVTokens != 0 {
			g.t.Errorf("%s: %d requests, %d backlog and %d KV tokens are still booked", s.Worker, s.Inflight, s.BacklogTokens, s.KVTokens)
		}
	}
	if n := g.prefill.held.Load(); n != 0 {
		g.t.Errorf("%d bytes are still held", n)
	}
	if _, jobs := g.prefill.sizes(); jobs != 0 {
		g.t.Errorf("%d warm-ups are still queued", jobs)
	}
}

func (g *rig) logf(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.quiet {
		return
	}
	g.lines = append(g.lines, fmt.Sprintf("%7.3fs  ", time.Since(g.start).Seconds())+fmt.Sprintf(format, args...))
}

// flush returns what was logged since the last flush.
func (g *rig) flush() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := strings.Join(g.lines, "\n")
	g.lines = nil
	return s
}

// engine runs one simulated engine.
type engine struct {
	rig        *rig
	number     kv.Worker
	wake       chan struct{}
	silent     bool
	translator *events.Translator

	mu  sync.Mutex
	sim *sim.Engine
}

// running is one sequence in an engine.
type running struct {
	seq         *sim.Seq
	first, done chan struct{}
	progress    func(tokens int) // may be nil
}

func (e *engine) run(ctx context.Context) {
	for {
		e.mu.Lock()
		d, ok := e.sim.Begin(time.Now())
		e.mu.Unlock()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-e.wake:
			}
			continue
		}
		time.Sleep(d)
		e.mu.Lock()
		for _, p := range e.sim.End(time.Now()) {
			c := p.Seq.Tag.(*running)
			if c.progress != nil && p.NewTokens > 0 {
				c.progress(p.NewTokens)
			}
			if p.FirstToken {
				close(c.first)
			}
			if p.Finished {
				close(c.done)
			}
		}
		raw := e.sim.Events()
		var net []kv.Event
		if len(raw) > 0 && !e.silent {
			for _, ev := range e.translator.Apply(&kvwire.Batch{Events: raw, Rank: -1}) {
				ev.Hashes = slices.Clone(ev.Hashes)
				net = append(net, ev)
			}
		}
		size := e.sim.Config().BlockSize
		e.mu.Unlock()
		if len(net) > 0 {
			time.AfterFunc(2*time.Millisecond, func() {
				for _, ev := range net {
					e.rig.index.Exact(size).Apply(e.number, ev)
				}
			})
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (e *engine) submit(tokens, output []uint32) *running {
	c := &running{first: make(chan struct{}), done: make(chan struct{})}
	e.start(c, tokens, output)
	return c
}

func (e *engine) start(c *running, tokens, output []uint32) {
	c.seq = &sim.Seq{Tokens: tokens, OutputTokens: len(output), Output: func(i int) uint32 { return output[i] }, Tag: c}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.sim.Submit(c.seq); err != nil {
		panic(err)
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *engine) abort(c *running) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sim.Abort(c.seq)
}

// wireMessage is a message as the template reads it.
type wireMessage struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning"`
	Calls     []struct {
		Function struct{ Name, Arguments string } `json:"function"`
	} `json:"tool_calls"`
}

// words makes a token of every byte, so that texts are short.
func words(dst []uint32, s string) []uint32 {
	for i := range len(s) {
		dst = append(dst, 100+uint32(s[i]))
	}
	return dst
}

const tokenEnd = 7

// render is the chat template: role, text, end; the prompt ends with the assistant's
// role. A thinking template drops reasoning from history, a plain one has none.
func render(body []byte) []uint32 {
	var q struct {
		Messages []wireMessage     `json:"messages"`
		Tools    []json.RawMessage `json:"tools"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		panic(err)
	}
	var out []uint32
	for _, t := range q.Tools {
		out = append(words(out, string(t)), tokenEnd)
	}
	for _, m := range q.Messages {
		out = words(words(out, m.Role), m.Content)
		for _, c := range m.Calls {
			out = words(words(out, c.Function.Name), c.Function.Arguments)
		}
		out = append(out, tokenEnd)
	}
	return words(out, "assistant")
}

// generation is what the engine writes for a reply.
func generation(reasoning, content, call string) []uint32 {
	var out []uint32
	if reasoning != "" {
		out = append(words([]uint32{1}, reasoning), 2)
	}
	out = words(out, content)
	if call != "" {
		out = words(words(out, "f"), call)
	}
	return append(out, tokenEnd)
}

func (g *rig) identify(_ context.Context, req *openai.Request, body []byte, ns kv.Namespace) *kv.Prompt {
	p := &kv.Prompt{Source: kv.SourceEngine, Namespace: ns, BytesPerToken: 1}
	tokens := g.render(body)
	p.TokenCount = len(tokens)
	if !g.noTokens && tokens != nil {
		p.Tokens = tokens
		return p
	}
	p.Source, p.Reason = kv.SourceText, "no tokenizer"
	var text []byte
	for i := range req.Messages {
		text = append(text, req.Messages[i].Of(body)...)
		if n := len(text) / kv.TextBlockBytes; n > 0 {
			p.TextBoundaries = append(p.TextBoundaries, n)
		}
	}
	p.TextBoundaries = slices.Compact(p.TextBoundaries)
	p.Text = kv.AppendTextHashes(nil, text, ns.TextSeed(req.Model))
	return p
}

// Prefill implements Sender.
func (g *rig) Prefill(ctx context.Context, w *Warmup) (Answer, error) {
	g.mu.Lock()
	if !g.quiet {
		g.sent = append(g.sent, w)
	}
	answer := g.answer
	g.mu.Unlock()
	name, _, _ := strings.Cut(strings.TrimPrefix(string(w.Header), "X-Session-Id: "), "\r\n")
	g.logf("%s  prefill  %s", name, w.Worker)
	if answer != nil {
		a, err := answer(ctx)
		g.logf("%s  answer   %s  status=%d err=%v", name, w.Worker, a.Status, err)
		return a, err
	}
	e := g.engine(w.Worker.ID)
	c := e.submit(g.prompt(w), []uint32{9})
	select {
	case <-ctx.Done():
		e.abort(c)
		g.logf("%s  aborted  %s", name, w.Worker)
		return Answer{}, ctx.Err()
	case <-c.done:
	}
	g.logf("%s  warm     %s  cached=%d new=%d", name, w.Worker, c.seq.CachedTokens, len(c.seq.Tokens)-c.seq.CachedTokens)
	return Answer{Status: 200, Usage: openai.Usage{PromptTokens: len(c.seq.Tokens), CompletionTokens: 1, CachedTokens: c.seq.CachedTokens, ReasoningTokens: -1}}, nil
}

// warmups returns what was sent so far.
func (g *rig) warmups() []*Warmup {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.sent)
}

// prompt returns the tokens of a warm-up of either form.
func (g *rig) prompt(w *Warmup) []uint32 {
	if w.Path == pathChat {
		return g.render(w.Body)
	}
	var q struct {
		Prompt []uint32
	}
	if err := json.Unmarshal(w.Body, &q); err != nil || len(q.Prompt) == 0 {
		panic(fmt.Sprintf("%s: %v: %s", w.Path, err, w.Body))
	}
	return q.Prompt
}

// settled lets everything that can happen at this instant happen, so that the log has
// one order.
func (g *rig) settled() {
	if !g.quiet {
		synctest.Wait()
	}
}

// holds returns the tokens of a prompt that events say a worker holds.
func (g *rig) holds(worker string, p *kv.Prompt) int {
	e := g.engines[worker]
	size := e.sim.Config().BlockSize
	dst := make([]kv.Overlap, g.numbers.Len())
	g.index.Exact(size).Overlap(p.Chain(size), dst)
	return int(dst[e.number].GPU) * size
}

// outcomes prints the counters that are not zero.
func (g *rig) outcomes() string {
	var out []string
	for name, n := range g.counts() {
		out = append(out, fmt.Sprintf("%s=%g", name, n))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// counts returns the outcomes so far, as "outcome/reason".
func (g *rig) counts() map[string]float64 {
	out := map[string]float64{}
	for name, n := range g.sums() {
		if l, ok := strings.CutPrefix(name, "outcomes_total "); ok {
			outcome, reason, _ := strings.Cut(l, " ")
			if reason != "" {
				outcome += "/" + reason
			}
			out[outcome] = n
		}
	}
	return out
}

// sums returns the Prefiller's metrics by name and labels: "outcomes_total used ". Those of a
// histogram are its number of values and, with " sum" behind, their sum.
func (g *rig) sums() map[string]float64 {
	families, err := g.registry.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "warmroute_prefill_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch {
			case m.Counter != nil:
				out[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				out[name] = m.Gauge.GetValue()
			case m.Histogram != nil:
				out[name] = float64(m.Histogram.GetSampleCount())
				out[name+" sum"] = m.Histogram.GetSampleSum()
			}
		}
	}
	return out
}

var errRefused = errors.New("connection refused")
