package prefill

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/internal/testcluster"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// town is a workload of testcluster played against the rig by its tokens, which are what
// join, replicate and rewarm go by. Warm-ups of turns are all held out.
type town struct {
	Workers int
	Clients int           // of a closed loop; 0: each conversation at its Arrival
	Stagger time.Duration // client i begins at a random time before
	Engine  sim.EngineConfig
	Prefill Config
	Copies  bool // router.Config.Copies
	Mode    Mode
	Seed    uint64
	Chats   []testcluster.Conversation
	// At happens at a time of the run.
	At   time.Duration
	What func(g *rig)
	// Until ends the run; 0: when all have ended.
	Until time.Duration
}

// row is one request of a town.
type row struct {
	chat, turn     int
	worker         string
	sent           time.Duration
	ttft, e2e      time.Duration
	prompt, cached int
	head           int // tokens of the shared prefix
	output         int
}

// lived is what happened in a town.
type lived struct {
	rows    []row
	elapsed time.Duration
	sums    map[string]float64 // metrics of the Prefiller by name and labels
	debug   Snapshot
}

// mix is a token of a stream: equal streams have equal tokens.
func mix(stream uint64, i int) uint32 {
	x := stream*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return uint32(x>>33) % 100_000
}

func (w *town) live(t *testing.T) (l lived) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pc := w.Prefill
		pc.Default, pc.Holdout, pc.Seed = w.Mode, 1, w.Seed+1
		if w.Engine.BlockSize == 0 {
			w.Engine.BlockSize = 64
		}
		g := newRig(t, rigConfig{Workers: w.Workers, Engine: w.Engine, Prefill: pc, Copies: w.Copies, MaxQueue: -1})
		g.quiet = true
		start := time.Now()
		if w.What != nil {
			g.wg.Go(func() {
				if sleep(g.ctx, w.At) {
					w.What(g)
				}
			})
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		over := func() bool { return w.Until > 0 && time.Since(start) >= w.Until }
		next := 0
		take := func() (int, bool) {
			mu.Lock()
			defer mu.Unlock()
			next++
			return next - 1, next <= len(w.Chats)
		}
		play := func(n int) {
			for _, r := range w.talk(g, n, start, over) {
				mu.Lock()
				l.rows = append(l.rows, r)
				mu.Unlock()
			}
		}
		r := rand.New(rand.NewPCG(w.Seed, 0x57a9))
		for range w.Clients {
			var at time.Duration
			if w.Stagger > 0 {
				at = time.Duration(r.Int64N(int64(w.Stagger)))
			}
			wg.Go(func() {
				time.Sleep(at)
				for n, ok := take(); ok && !over(); n, ok = take() {
					play(n)
				}
			})
		}
		if w.Clients == 0 {
			for n := range w.Chats {
				wg.Go(func() {
					time.Sleep(w.Chats[n].Arrival)
					if !over() {
						play(n)
					}
				})
			}
		}
		wg.Wait()
		l.elapsed = time.Since(start)
		l.sums, l.debug = g.sums(), g.prefill.Debug()
		g.close()
	})
	return l
}

// talk plays one conversation.
func (w *town) talk(g *rig, n int, start time.Time, over func() bool) (rows []row) {
	c := &w.Chats[n]
	history := append([]uint32(nil), c.Prefix...)
	var messages []string
	for i, turn := range c.Turns {
		if i > 0 {
			time.Sleep(time.Millisecond + turn.Think)
		}
		if over() {
			return rows
		}
		for k := range turn.InputTokens {
			history = append(history, mix(c.ID<<16|uint64(i)<<1, k))
		}
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%d.%d"}`, c.ID, i))
		body := fmt.Appendf(nil, `{"model":"m","stream":true,"messages":[%s]}`, strings.Join(messages, ","))
		var v openai.Request
		if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
			g.t.Fatal(err)
		}
		sent := time.Now()
		tokens := history[:len(history):len(history)]
		p := &kv.Prompt{Source: kv.SourceLocal, Tokens: tokens, TokenCount: len(tokens), BytesPerToken: 1}
		t := g.prefill.Arrived(Arrival{Request: &v, Body: body})
		lease, err := g.router.Route(context.Background(), &router.Request{
			Model: "m", Prompt: p, Stream: true, FirstTurn: v.FirstTurn, PinRank: -1, MaxTokens: turn.OutputTokens,
		})
		if err != nil {
			g.t.Errorf("turn %d of %d: %v", i, n, err)
			t.Finish(End{})
			return rows
		}
		g.prefill.Yield(lease.Worker())
		t.Routed(lease, p)
		output := make([]uint32, turn.OutputTokens)
		for k := range output {
			output[k] = mix(c.ID<<16|uint64(i)<<1|1, k)
		}
		x := g.engine(lease.Worker().ID).play(tokens, output, lease)
		<-x.first
		ttft := time.Since(sent)
		<-x.done
		u := openai.Usage{PromptTokens: len(tokens), CompletionTokens: len(output), CachedTokens: x.seq.CachedTokens, ReasoningTokens: -1}
		lease.Done(router.Outcome{OK: true, CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens})
		reply := fmt.Sprintf("r%d.%d", c.ID, i)
		t.Observe(openai.Event{Data: fmt.Appendf(nil, `{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":"stop"}]}`, reply)})
		t.Observe(openai.Event{Data: []byte("[DONE]")})
		t.Finish(End{OK: true, Worker: lease.Worker(), Prompt: p, TTFT: ttft, Usage: u})
		messages = append(messages, fmt.Sprintf(`{"role":"assistant","content":"%s"}`, reply))
		history = append(history, output...)
		rows = append(rows, row{
			chat: n, turn: i, worker: lease.Worker().ID, sent: sent.Sub(start), ttft: ttft, e2e: time.Since(sent),
			prompt: len(tokens), cached: u.CachedTokens, head: len(c.Prefix), output: len(output),
		})
	}
	return rows
}

// play submits a request whose lease hears of each step.
func (e *engine) play(tokens, output []uint32, lease *router.Lease) *running {
	first := false
	c := &running{first: make(chan struct{}), done: make(chan struct{})}
	c.progress = func(n int) {
		if !first {
			first = true
			lease.FirstToken()
		}
		lease.Progress(n)
	}
	e.start(c, tokens, output)
	return c
}

// rps returns the requests a second that ended before a time at which the clients are all
// still busy; 0: of the whole run, its end with fewer and fewer clients included.
func (l *lived) rps(until time.Duration) float64 {
	if until == 0 {
		return float64(len(l.rows)) / l.elapsed.Seconds()
	}
	n := 0
	for i := range l.rows {
		if l.rows[i].sent+l.rows[i].e2e <= until {
			n++
		}
	}
	return float64(n) / until.Seconds()
}

func (l *lived) reuse() float64 {
	var prompt, cached int
	for i := range l.rows {
		prompt += l.rows[i].prompt
		cached += l.rows[i].cached
	}
	return float64(cached) / float64(prompt)
}

func (l *lived) mean(of func(*row) float64) float64 {
	sum := 0.0
	for i := range l.rows {
		sum += of(&l.rows[i])
	}
	return sum / float64(len(l.rows))
}

func (l *lived) computed() (tokens int) {
	for i := range l.rows {
		tokens += l.rows[i].prompt - l.rows[i].cached
	}
	return tokens
}

// sorted returns the rows in the order in which they were sent.
func sorted(rows []row) []row {
	return slices.SortedFunc(slices.Values(rows), func(a, b row) int { return cmp.Or(cmp.Compare(a.sent, b.sent), cmp.Compare(a.chat, b.chat)) })
}

func (l *lived) ttft() (v []float64) {
	for i := range l.rows {
		v = append(v, l.rows[i].ttft.Seconds())
	}
	return v
}

// clear empties the engine's cache as soon as nothing runs there.
func (e *engine) clear() {
	for {
		e.mu.Lock()
		done := e.sim.Clear()
		e.mu.Unlock()
		if done || !sleep(e.rig.ctx, time.Millisecond) {
			return
		}
	}
}
