package router

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/kv"
)

// fifo is a worker that prefills one request after the other at 8,000 tokens/s and
// decodes 100 tokens/s: enough of an engine to close the loop around the router.
type fifo struct{ free time.Duration }

// step is something that happens at a time.
type step struct {
	at time.Duration
	do func()
}

// loop runs clients that send one request after the other, each with a prompt of its
// own behind shared blocks, and returns what was in flight per worker at each send.
func loop(w *world, clients, requests, shared int, output time.Duration) (inflight []map[string]int, hit float64) {
	var (
		steps   []step
		engines = map[kv.WorkerRank]*fifo{}
		load    = map[string]int{}
		sent    int
		cached  float64
		total   float64
		send    func()
		zero    = w.now
		seeds   = rand.New(rand.NewPCG(7, 7))
	)
	at := func() time.Duration { return w.now.Sub(zero) }
	send = func() {
		if sent == requests {
			return
		}
		sent++
		p := prompt(fmt.Sprintf("system/%d+tail%d/2", shared, sent), 100, false)
		l := w.route(&Request{Prompt: p, Stream: true, FirstTurn: true, PinRank: -1})
		k := l.Worker()
		load[k.ID]++
		snapshot := map[string]int{}
		for _, s := range w.specs {
			snapshot[s.ID] = load[s.ID]
		}
		inflight = append(inflight, snapshot)
		n, _ := w.numbers.Lookup(k)
		held := make([]kv.Overlap, w.numbers.Len())
		e := engines[k]
		if e == nil {
			e = &fifo{}
			engines[k] = e
		}
		start := max(e.free, at())
		// What the engine finds when it begins: prompts before ours are computed then.
		e.free = start
		steps = append(steps, step{start, func() {
			w.index.Exact(100).Overlap(p.Chain(100), held)
			got := int(held[n].GPU) * 100
			cached, total = cached+float64(got), total+float64(len(p.Tokens))
			first := at() + time.Duration(float64(len(p.Tokens)-got)/8000*float64(time.Second))
			w.index.Exact(100).Apply(n, kv.Event{Kind: kv.EventStored, Hashes: slices.Clone(p.Chain(100))})
			e.free = max(e.free, first)
			steps = append(steps, step{first, l.FirstToken}, step{first + output, func() {
				load[k.ID]--
				l.Done(Outcome{OK: true, CachedTokens: got, PromptTokens: -1, OutputTokens: int(output / (10 * time.Millisecond))})
				send()
			}})
		}})
	}
	for range clients {
		steps = append(steps, step{time.Duration(seeds.IntN(2000)) * time.Millisecond, send})
	}
	for len(steps) > 0 {
		i := 0
		for j := range steps {
			if steps[j].at < steps[i].at {
				i = j
			}
		}
		s := steps[i]
		steps = slices.Delete(steps, i, i+1)
		w.now = zero.Add(max(s.at, at()))
		s.do()
	}
	return inflight, cached / total
}

// TestFC61_HotPrefixSpreads: 4 workers, one prefix of 8,000 tokens, 16 requests with
// tails of their own in flight. The load term keeps them apart while the hit rate
// stays high.
func TestFC61_HotPrefixSpreads(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(4, WorkerSpec{BlockSize: 100})
	loads, hit := loop(w, 16, 400, 80, 2*time.Second)
	if hit < 0.8 {
		t.Errorf("hit rate %.3f, want > 0.8", hit)
	}
	for i, l := range loads[80:] {
		n := []int{l["w1"], l["w2"], l["w3"], l["w4"]}
		if slices.Max(n) > 2*max(slices.Min(n), 1) {
			t.Errorf("request %d: %v in flight, want max/min ≤ 2", 80+i, n)
		}
	}
}

// TestFC63_TiesSpread: sequential unique prompts over idle workers, with and without
// events, whatever the engines' speed: the first that is measured is no faster for it.
func TestFC63_TiesSpread(t *testing.T) {
	for run, feed := range []string{FeedComplete, FeedNone, FeedComplete, FeedComplete} {
		ttft := []time.Duration{256, 256, 40, 2000}[run] * time.Millisecond // for 2,048 tokens
		for seed := range uint64(3) {
			w := newWorld(t, Config{Seed: seed + 1})
			w.fleet(3, WorkerSpec{BlockSize: 64})
			for _, s := range w.specs {
				w.router.SetFeed(kv.WorkerRank{ID: s.ID}, Feed{State: feed})
			}
			got := map[string]int{}
			for i := range 300 {
				l := w.route(&Request{Prompt: prompt(fmt.Sprintf("u%d/32", i), 64, false), Stream: true, FirstTurn: true, PinRank: -1})
				w.advance(ttft)
				l.FirstToken()
				w.advance(time.Second)
				l.Done(Outcome{OK: true, CachedTokens: -1, PromptTokens: -1, OutputTokens: 50})
				got[l.Worker().ID]++
			}
			for id, n := range got {
				if n < 75 || n > 126 {
					t.Errorf("feed %s, TTFT %v, seed %d: %s got %d of 300, want 25–42 %%: %v", feed, ttft, seed, id, n, got)
				}
			}
		}
	}
}

func TestRoute_ErrorsAreTellingApart(t *testing.T) {
	w := newWorld(t, Config{MaxInflight: 1})
	route := func(model string) error {
		_, err := w.router.Route(context.Background(), &Request{Model: model, PinRank: -1})
		return err
	}
	if err := route("m"); !errors.Is(err, ErrNoWorkers) {
		t.Errorf("empty fleet: %v", err)
	}
	w.router.SetWorkers([]WorkerSpec{{ID: "a"}, {ID: "b", Models: []ModelSpec{{Name: "m"}}}})
	if err := route("x"); !errors.Is(err, ErrNoWorkers) {
		t.Errorf("a worker that has not told its models: %v", err)
	}
	w.fleet(1, WorkerSpec{})
	if err := route("x"); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("unknown model: %v", err)
	}
	if err := route("m"); err != nil {
		t.Error(err)
	}
	var full *SaturatedError
	if err := route("m"); !errors.As(err, &full) || full.Limit != 1 || full.RetryAfter < time.Second {
		t.Errorf("saturated: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := w.router.Route(ctx, &Request{Model: "m"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	for _, bad := range []Config{{Mode: "fastest"}, {MaxInflight: -1}, {}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}

// TestSetWorkers_KeepsWhatIsKnown: load, rates and feeds outlive a change of the
// fleet, and a new worker starts with its model's rate.
func TestSetWorkers_KeepsWhatIsKnown(t *testing.T) {
	w := newWorld(t, Config{})
	w.router.SetFeed(kv.WorkerRank{ID: "w1"}, Feed{State: FeedPartial, Reason: "attached late", BlockSize: 32})
	w.router.SetWorkers([]WorkerSpec{{ID: "w1", Models: []ModelSpec{{Name: "m"}}}})
	if s := w.router.Status()[0]; s.Coverage != FeedPartial || s.BlockSize != 32 || s.CoverageReason != "attached late" {
		t.Errorf("feed told before the worker is lost: %+v", s)
	}
	l := w.route(&Request{Prompt: prompt("a/100", 100, false), Stream: true, PinRank: -1})
	w.advance(2 * time.Second)
	l.FirstToken()
	w.fleet(2, WorkerSpec{})
	s := w.router.Status()
	if s[0].Inflight != 1 || s[0].RateSamples != 1 {
		t.Errorf("w1 lost its load: %+v", s[0])
	}
	if s[1].Rate > 6000 || s[1].Rate < 5000 {
		t.Errorf("w2 starts at %.0f tokens/s, want the model's rate of about 5,600", s[1].Rate)
	}
	w.router.SetWorkers(w.specs[1:])
	l.Progress(3)
	l.Done(Outcome{OK: true, CachedTokens: 0, PromptTokens: -1, OutputTokens: -1})
	if _, held := w.numbers.Lookup(kv.WorkerRank{ID: "w1"}); held {
		t.Error("w1's number outlives its last lease")
	}
}

func TestRoute_DifferentBlockSizes(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(2, WorkerSpec{})
	a, b := kv.WorkerRank{ID: "w1"}, kv.WorkerRank{ID: "w2"}
	w.router.SetFeed(a, Feed{State: FeedComplete, BlockSize: 16})
	w.router.SetFeed(b, Feed{State: FeedComplete, BlockSize: 64})
	na, _ := w.numbers.Lookup(a)
	nb, _ := w.numbers.Lookup(b)
	p := prompt("s/10", 64, false)
	w.index.Exact(16).Apply(na, kv.Event{Kind: kv.EventStored, Hashes: slices.Clone(p.Chain(16)[:30])})
	w.index.Exact(64).Apply(nb, kv.Event{Kind: kv.EventStored, Hashes: slices.Clone(p.Chain(64)[:5])})
	c := w.route(&Request{Prompt: p, PinRank: -1}).Decision().Candidates
	if c[0].OverlapTokens != 480 || c[1].OverlapTokens != 320 {
		t.Errorf("overlaps %d and %d tokens, want 480 and 320", c[0].OverlapTokens, c[1].OverlapTokens)
	}
}

func TestDecisions_AreBoundedAndNewestFirst(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{})
	for range 300 {
		w.route(&Request{Prompt: prompt("a/1", 64, false), PinRank: -1})
	}
	d := w.router.Decisions()
	if len(d) != maxDecisions || d[0].ID != "300" || d[255].ID != "45" {
		t.Fatalf("%d decisions, %s … %s", len(d), d[0].ID, d[len(d)-1].ID)
	}
	raw, err := json.Marshal(d[0])
	if err != nil || !strings.Contains(string(raw), `"candidates":[{"worker":"w1","rank":0,"coverage":"complete"`) {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestITLFit_FindsCoefficients(t *testing.T) {
	f := newITLFit()
	rnd := rand.New(rand.NewPCG(3, 3))
	want := itl{12e-3, 2.5e-4, 4e-8}
	for range 4000 {
		n := 1 + rnd.Float64()*40
		kvTokens := n * (2000 + rnd.Float64()*20000)
		y := want.a + want.b*n + want.c*kvTokens
		if rnd.IntN(100) == 0 {
			y *= 1000 // a client that stopped reading
		}
		f.observe(y*(0.9+0.2*rnd.Float64()), n, kvTokens)
	}
	got, _ := f.coefficients()
	for _, c := range [][2]float64{{got.a, want.a}, {got.b, want.b}, {got.c, want.c}} {
		if math.Abs(c[0]/c[1]-1) > 0.2 {
			t.Errorf("fit %+v, want %+v within 20 %%", got, want)
		}
	}
	// One sequence only: a and b cannot be told apart, but their sum can.
	f = newITLFit()
	for range 4000 {
		f.observe(0.03, 1, 1000)
	}
	got, _ = f.coefficients()
	if y := got.a + got.b + 1000*got.c; math.Abs(y-0.03) > 0.001 || got.b < 0 || got.c < 0 {
		t.Errorf("fit of one sequence %+v", got)
	}
}

// TestProgress_FitsOnlyWhileNothingIsPrefilled: gaps stretched by a prefill on the
// same rank tell nothing of decoding.
func TestProgress_FitsOnlyWhileNothingIsPrefilled(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{})
	a := w.route(&Request{Prompt: prompt("a/10", 64, false), Stream: true, PinRank: -1})
	a.FirstToken()
	run := func(tokens int, gap time.Duration) int {
		for range tokens {
			w.advance(gap)
			a.Progress(1)
		}
		return w.router.Status()[0].ITL.Samples
	}
	if n := run(1+16*64, 20*time.Millisecond); n != 64 {
		t.Errorf("%d samples, want 64", n)
	}
	if s := w.router.Status()[0].ITL; math.Abs(s.A-0.0165) > 0.003 {
		t.Errorf("a = %.4f s after 64 samples of 20 ms", s.A)
	}
	b := w.route(&Request{Prompt: prompt("b/10", 64, false), Stream: true, PinRank: -1})
	if n := run(100, 500*time.Millisecond); n != 64 {
		t.Errorf("%d samples during a prefill", n-64)
	}
	b.FirstToken()
	if n := run(1+16, 20*time.Millisecond); n != 65 {
		t.Errorf("%d samples after the prefill, want one", n-64)
	}
}

// TestRate_NeverFeedsBack: a queue makes TTFT long but R stays what it is.
func TestRate_NeverFeedsBack(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{})
	for round := range 40 {
		var burst []*Lease
		for i := range 10 {
			burst = append(burst, w.route(&Request{Prompt: prompt(fmt.Sprintf("r%d-%d/64", round, i), 64, false), Stream: true, PinRank: -1}))
		}
		for _, l := range burst {
			w.advance(seconds(4096.0 / 12000))
			l.FirstToken()
			l.Done(Outcome{OK: true, CachedTokens: 0, PromptTokens: -1, OutputTokens: 1})
		}
		w.advance(time.Minute) // idle time is no time of prefill
	}
	if r := w.router.Status()[0].Rate; math.Abs(r/12000-1) > 0.02 {
		t.Errorf("R = %.0f tokens/s, want 12,000", r)
	}
}

func TestRate_IsClampedToItsModel(t *testing.T) {
	var pool, fast, slow rate
	for range 100 {
		pool.add(1e6, 100)
		fast.add(1e6, 1)
		slow.add(1e4, 1000)
	}
	p := pool.pooled()
	if got := fast.of(&pool); got != 4*p {
		t.Errorf("fast worker %.0f, want 4 × %.0f", got, p)
	}
	if got := slow.of(&pool); got != p/4 {
		t.Errorf("slow worker %.0f, want ¼ of %.0f", got, p)
	}
}

func TestExpectations_AreBounded(t *testing.T) {
	e := newExpectations(10)
	for i := range 1000 {
		e.observeOutput(scope{fmt.Sprint(i), "m"}, 5)
	}
	if n, forgotten := e.stats(); n != 10 || forgotten != 991 {
		t.Errorf("%d entries, %d forgotten", n, forgotten)
	}
	if l, _ := e.get(&Request{Key: "new", Model: "m"}); l > 10 {
		t.Errorf("a new tenant of a known model expects %.0f tokens", l)
	}
}

// TestConversations_AreKnownByTheirPrompts follows turns by text, by tokens, and under
// the bound.
func TestConversations_AreKnownByTheirPrompts(t *testing.T) {
	for _, source := range []kv.Source{kv.SourceText, kv.SourceLocal, kv.SourceClient} {
		w := newWorld(t, Config{})
		w.router.talks = newConversations(50)
		w.fleet(2, WorkerSpec{BlockSize: 16})
		turn := func(spec string, first bool) *Lease {
			p := prompt(spec, 16, source == kv.SourceText)
			p.Source = source
			return w.route(&Request{Prompt: p, Stream: true, FirstTurn: first, PinRank: -1})
		}
		end := func(l *Lease) { l.Done(Outcome{OK: true, CachedTokens: -1, PromptTokens: -1, OutputTokens: 5}) }
		for i := range 40 {
			l := turn(fmt.Sprintf("s/3+c%d/2", i), true)
			if l.returning {
				t.Errorf("%v: first turn of %d continues something", source, i)
			}
			end(l)
		}
		for i := range 40 {
			w.advance(time.Second)
			l := turn(fmt.Sprintf("s/3+c%d/2+d%d/4", i, i), source == kv.SourceClient)
			if !l.returning || l.talk.turns != 1 {
				t.Errorf("%v: second turn of %d is not known", source, i)
			}
			end(l)
		}
		if n, tau, _ := w.router.talks.stats(); n != 40 || tau == startTau.Seconds() {
			t.Errorf("%v: %d conversations, tau %.0f s", source, n, tau)
		}
		for i := range 100 {
			end(turn(fmt.Sprintf("z%d/4", i), true))
		}
		if n, _, forgotten := w.router.talks.stats(); n != 50 || forgotten != 90 {
			t.Errorf("%v: %d conversations, %d forgotten", source, n, forgotten)
		}
	}
}

// TestMetrics_CountWhatHappened gathers every metric once and pins the interesting ones.
func TestMetrics_CountWhatHappened(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	w := newWorld(t, Config{Registerer: reg})
	w.fleet(2, WorkerSpec{BlockSize: 100, CapacityTokens: 100000})
	w.stored(kv.WorkerRank{ID: "w1"}, "s/8", 100)
	turn := func(spec string, first bool, cached int) {
		l := w.route(&Request{Prompt: prompt(spec, 100, false), Stream: true, FirstTurn: first, PinRank: -1})
		w.advance(50 * time.Millisecond)
		l.FirstToken()
		l.Progress(10)
		l.Done(Outcome{OK: true, CachedTokens: cached, PromptTokens: -1, OutputTokens: -1})
		w.advance(time.Minute)
	}
	turn("s/8+a/2", true, 800)
	turn("s/8+a/2+b/1", false, 500) // its first turn had 1,000 tokens, of which events know 800
	turn("s/8+x/2+y/1", false, -1)  // a later turn of a conversation never seen
	_, _ = w.router.Route(context.Background(), &Request{Model: "nope"})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "warmroute_router_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			got[name] = cmp.Or(m.GetCounter().GetValue(), m.GetGauge().GetValue(), float64(m.GetHistogram().GetSampleCount()))
		}
	}
	for name, want := range map[string]float64{
		"decisions_total kv overlap": 3, "refusals_total unknown_model": 1,
		"prompt_tokens_total": 3200, "predicted_cached_tokens_total exact": 2400,
		"reported_prompt_tokens_total": 2100, "reported_cached_tokens_total": 1300, "reported_predicted_cached_tokens_total": 1600,
		"reuse_lost_tokens_total evicted": 200, "reuse_lost_tokens_total never_seen": 300,
		"actual_ttft_seconds": 3, "predicted_ttft_seconds": 3, "ttft_error_seconds": 3, "overlap_blocks": 3, "overlap_error_tokens": 2,
		"usable 0 w1": 1, "inflight 0 w1": 0, "conversations": 2, "age_scale_seconds": 60, "itl_coefficient a m": 0.008,
	} {
		if v, ok := got[name]; !ok && want != 0 || math.Abs(v-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, v, want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestRate_OneHangIsNotSlowness: an engine that stood for ten minutes and one that had
// the prompt cached move R by little.
func TestRate_OneHangIsNotSlowness(t *testing.T) {
	for _, took := range []time.Duration{10 * time.Minute, time.Microsecond} {
		w := newWorld(t, Config{})
		w.fleet(1, WorkerSpec{})
		for i, d := range append(slices.Repeat([]time.Duration{512 * time.Millisecond}, 50), took) {
			l := w.route(&Request{Prompt: prompt(fmt.Sprintf("p%d/64", i), 64, false), Stream: true, PinRank: -1})
			w.advance(d)
			l.FirstToken()
			l.Done(Outcome{OK: true, CachedTokens: -1})
		}
		if r := w.router.Status()[0].Rate; r < 6000 || r > 10000 {
			t.Errorf("R = %.0f tokens/s after 50 samples of 8,000 and one of %v", r, took)
		}
	}
}

func TestExpectations_AbsurdCountsAreCut(t *testing.T) {
	e := newExpectations(10)
	e.observeOutput(scope{"", "m"}, math.MaxInt64)
	if l, _ := e.get(&Request{Model: "m"}); l > maxOutput {
		t.Errorf("L = %v", l)
	}
	if l, _ := e.get(&Request{Model: "m", OutputTokensHint: math.MaxInt64}); l != maxOutput {
		t.Errorf("L = %v", l)
	}
}

// TestConversations_GapIsTakenOnce: attempts that fail are not returns of their own.
func TestConversations_GapIsTakenOnce(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(2, WorkerSpec{BlockSize: 16})
	turn := func(spec string, ok bool, exclude ...string) {
		l := w.route(&Request{Prompt: prompt(spec, 16, false), Stream: true, PinRank: -1, Exclude: exclude})
		w.advance(time.Second)
		l.Done(Outcome{OK: ok, CachedTokens: -1})
	}
	turn("a/4", true)
	w.advance(30 * time.Second)
	turn("a/4+b/4", false)
	turn("a/4+b/4", true, "w1")
	if got := fmt.Sprint(w.router.talks.mu.gaps); got != "[31]" {
		t.Errorf("gaps %s, want one of 31 s", got)
	}
}
