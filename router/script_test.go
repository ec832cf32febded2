package router

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/script"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// world is one router with its index, and a clock that only the test moves.
type world struct {
	t       testing.TB
	now     time.Time
	index   *index.Set
	numbers *kv.Workers
	router  *Router
	specs   []WorkerSpec
	leases  map[string]*Lease
	stale   []string
	names   int
}

func newWorld(t testing.TB, cfg Config) *world {
	w := &world{t: t, now: time.Unix(1_000_000, 0), numbers: &kv.Workers{}, leases: map[string]*Lease{}}
	clock := func() time.Time { return w.now }
	w.index = index.NewSet(index.Config{Now: clock})
	cfg.Index, cfg.Workers, cfg.Now = w.index, w.numbers, clock
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	if cfg.MaxQueue == 0 {
		cfg.MaxQueue = -1 // who waits in Route waits for a clock that stands
	}
	cfg.OnStaleHits = func(k kv.WorkerRank) { w.stale = append(w.stale, k.String()) }
	w.router = New(cfg)
	return w
}

func (w *world) advance(d time.Duration) { w.now = w.now.Add(d) }

// fleet makes n equal workers w1…wn with complete feeds.
func (w *world) fleet(n int, spec WorkerSpec) {
	w.specs = nil
	for i := range n {
		s := spec
		s.ID = "w" + strconv.Itoa(i+1)
		if s.Models == nil {
			s.Models = []ModelSpec{{Name: "m"}}
		}
		w.specs = append(w.specs, s)
	}
	w.router.SetWorkers(w.specs)
	for _, s := range w.specs {
		for r := range max(s.Ranks, 1) {
			w.router.SetFeed(kv.WorkerRank{ID: s.ID, Rank: r}, Feed{State: FeedComplete})
		}
	}
}

// prompt makes the prompt "system/3+turn1/1": parts of whole blocks of block tokens.
// Equal parts have equal tokens. A block of tokens is 4 blocks of text.
func prompt(spec string, block int, text bool) *kv.Prompt {
	p := &kv.Prompt{Source: kv.SourceLocal, BytesPerToken: 4 * kv.TextBlockBytes / float64(block)}
	var bytes []byte
	for part := range strings.SplitSeq(spec, "+") {
		name, count, _ := strings.Cut(part, "/")
		n, err := strconv.Atoi(count)
		if err != nil {
			panic("prompt " + spec + ": parts are name/blocks")
		}
		h := fnv.New32a()
		h.Write([]byte(name))
		for i := range n * block {
			p.Tokens = append(p.Tokens, h.Sum32()+uint32(i))
		}
		for i := range n * 4 * kv.TextBlockBytes {
			bytes = append(bytes, byte(h.Sum32()>>(i%4*8))+byte(i>>8))
		}
		p.TextBoundaries = append(p.TextBoundaries, len(bytes)/kv.TextBlockBytes)
	}
	p.TokenCount = len(p.Tokens)
	p.Text = kv.AppendTextHashes(nil, bytes, kv.Namespace{}.TextSeed("m"))
	if text {
		p.Tokens, p.Source, p.Reason = nil, kv.SourceText, "tokenizer took longer than 50 ms"
	}
	return p
}

// stored lets the events of a rank tell that it holds a prompt.
func (w *world) stored(k kv.WorkerRank, spec string, block int) {
	n := w.numbers.Hold(k)
	defer w.numbers.Release(n)
	w.index.Exact(block).Apply(n, kv.Event{Kind: kv.EventStored, Hashes: slices.Clone(prompt(spec, block, false).Chain(block))})
}

func (w *world) route(req *Request) *Lease {
	w.t.Helper()
	if req.Model == "" {
		req.Model = "m"
	}
	l, err := w.router.Route(context.Background(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func parseRank(s string) kv.WorkerRank {
	id, rank, _ := strings.Cut(s, "/")
	n, _ := strconv.Atoi(rank)
	return kv.WorkerRank{ID: id, Rank: n}
}

// run executes one command of a golden script.
func (w *world) run(c *script.Cmd) string {
	block := 1000
	if len(w.specs) > 0 && w.specs[0].BlockSize > 0 {
		block = w.specs[0].BlockSize
	}
	switch c.Name {
	case "mode":
		*w = *newWorld(w.t, Config{Mode: Mode(c.Args[0])})
		return ""
	case "workers":
		return w.runWorkers(c)
	case "models":
		return strings.Join(w.router.Models(), " ")
	case "feed":
		w.router.SetFeed(parseRank(c.Args[0]), Feed{State: c.Args[1], BlockSize: c.Int("block", 0)})
		return ""
	case "health":
		w.router.SetHealth(c.Args[0], c.Args[1] == "up", strings.Join(c.Args[2:], " "))
		return ""
	case "breaker":
		w.router.SetBreaker(c.Args[0], Breaker{Level: c.Int("level", 0), Trial: c.Int("trial", 0) == 1, Reason: c.String("reason", "")})
		return ""
	case "drain":
		w.router.SetDraining(c.Args[0], true)
		return ""
	case "stored":
		w.stored(parseRank(c.Args[0]), c.Args[1], block)
		return ""
	case "cleared":
		n, _ := w.numbers.Lookup(parseRank(c.Args[0]))
		w.index.Exact(block).Apply(n, kv.Event{Kind: kv.EventCleared})
		return ""
	case "route":
		return w.runRoute(c, block)
	case "first", "progress", "done", "failed":
		return w.runLease(c)
	case "wait":
		d, err := time.ParseDuration(c.Args[0])
		if err != nil {
			panic(c.Pos + ": " + err.Error())
		}
		w.advance(d)
		return ""
	case "load":
		return w.runLoad()
	case "outlook":
		o, err := w.router.Outlook(&Request{Model: "m", Prompt: prompt(c.Args[0], block, false), PinRank: -1})
		if err != nil {
			return "error: " + err.Error()
		}
		return fmt.Sprintf("%v: %d of %d tokens held, %s; waiting=%d warming=%d inflight=%d full=%v E=%.3f busy=%v warmed=%v",
			o.Worker, o.OverlapTokens, o.PromptTokens, o.OverlapFrom, o.Waiting, o.Warming, o.Inflight, o.Full, o.Evict, o.Busy, o.Warmed)
	case "preview":
		d, err := w.router.Preview(&Request{Model: "m", Prompt: prompt(c.Args[0], block, false), PinRank: -1})
		if err != nil {
			return "error: " + err.Error()
		}
		return d.Explain()
	case "cost":
		return runCost(c)
	case "learned":
		req := &Request{Model: c.String("model", "m"), Key: c.String("key", "")}
		output, turns := w.router.expect.get(req)
		return fmt.Sprintf("L=%.0f F=%.2f tau=%.0fs", output, turns, w.router.talks.tau())
	}
	panic(c.Pos + ": no command " + c.Name)
}

// runCost computes one cost from numbers alone.
func runCost(c *script.Cmd) string {
	in := costInput{
		prompt: c.Float("prompt", 0), overlap: c.Float("overlap", 0), backlog: c.Float("backlog", 0), rate: c.Float("R", startRate),
		n: c.Float("n", 0), kv: c.Float("kv", 0), held: c.Float("held", c.Float("kv", 0)), own: c.Float("own", c.Float("prompt", 0)),
		cap: c.Float("capacity", 0), maxSeqs: c.Float("seqs", 0), itl: startITL,
		output: c.Float("L", 0), turns: c.Float("F", 1), evict: c.Float("evict", 0),
	}
	t := in.cost()
	return fmt.Sprintf("queue=%.4f slot=%.4f prefill=%.4f decode=%.4f stall=%.4f evict=%.4f cost=%.4f",
		t.queue, t.slot, t.prefill, t.decode, t.stall, t.evict, t.total())
}

func (w *world) runWorkers(c *script.Cmd) string {
	spec := WorkerSpec{
		BlockSize: c.Int("block", 1000), CapacityTokens: c.Int("capacity", 0), MaxNumSeqs: c.Int("seqs", 0),
		MaxInflight: c.Int("inflight", 0), Ranks: c.Int("ranks", 1),
	}
	for m := range strings.SplitSeq(c.String("models", "m"), ",") {
		name, parent, _ := strings.Cut(m, ":")
		spec.Models = append(spec.Models, ModelSpec{name, parent})
	}
	if _, more := c.Vals["add"]; !more {
		w.specs = nil
	}
	for _, id := range c.Args {
		s := spec
		s.ID = id
		w.specs = append(w.specs, s)
	}
	w.router.SetWorkers(w.specs)
	for _, id := range c.Args {
		for r := range spec.Ranks {
			w.router.SetFeed(kv.WorkerRank{ID: id, Rank: r}, Feed{State: c.String("feed", FeedComplete)})
		}
	}
	return ""
}

func (w *world) runRoute(c *script.Cmd, block int) string {
	has := func(word string) bool { return slices.Contains(c.Args[1:], word) }
	var out []string
	for range c.Int("times", 1) {
		req := &Request{
			Model: c.String("model", "m"), Key: c.String("key", ""), MaxTokens: c.Int("max", 0),
			OutputTokensHint: c.Int("osl", 0), FirstTurn: has("first"), Stream: !has("nostream"),
			PinWorker: c.String("pin", ""), PinRank: c.Int("rank", -1), Speculative: has("warm-up"),
		}
		if c.Args[0] != "nothing" {
			req.Prompt = prompt(c.Args[0], block, has("text"))
		}
		if x := c.String("exclude", ""); x != "" {
			req.Exclude = strings.Split(x, ",")
		}
		l, err := w.router.Route(context.Background(), req)
		if err != nil {
			return "error: " + err.Error()
		}
		w.names++
		w.leases[c.String("as", strconv.Itoa(w.names))] = l
		if c.Int("times", 1) == 1 {
			return l.Decision().Explain()
		}
		out = append(out, l.Worker().String())
	}
	return strings.Join(out, " ")
}

func (w *world) runLease(c *script.Cmd) string {
	before := len(w.stale)
	for _, name := range c.Args {
		l := w.leases[name]
		if l == nil {
			panic(c.Pos + ": no lease " + name)
		}
		switch c.Name {
		case "first":
			l.FirstToken()
		case "progress":
			for range c.Int("tokens", 1) {
				w.advance(time.Duration(c.Float("gap_ms", 0) * float64(time.Millisecond)))
				l.Progress(1)
			}
		default:
			l.Done(Outcome{
				OK: c.Name == "done", CachedTokens: c.Int("cached", -1), PromptTokens: -1, OutputTokens: c.Int("output", -1),
			})
		}
	}
	if len(w.stale) > before {
		return "stale hits: " + strings.Join(w.stale[before:], " ")
	}
	return ""
}

func (w *world) runLoad() string {
	var b strings.Builder
	for _, s := range w.router.Status() {
		fmt.Fprintf(&b, "%v inflight=%d running=%d backlog=%d kv=%d held=%d R=%.0f itl=%.4gms+%.4gms*n+%.4gns*kv a0=%.1fms\n",
			kv.WorkerRank{ID: s.Worker, Rank: s.Rank}, s.Inflight, s.Running, s.BacklogTokens, s.KVTokens, s.HeldTokens,
			s.Rate, s.ITL.A*1e3, s.ITL.B*1e3, s.ITL.C*1e9, s.Intercept*1e3)
	}
	return b.String()
}

// TestRoute_Scripts runs the stories of testdata/route.
func TestRoute_Scripts(t *testing.T) {
	script.RunDir(t, "testdata/route", func(t *testing.T) func(*script.Cmd) string {
		w := newWorld(t, Config{})
		return w.run
	})
}
