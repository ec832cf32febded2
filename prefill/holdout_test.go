package prefill

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/bench"
	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// The demo's workload; a byte is a token here.
const (
	demoUsers, demoTurns, demoPairs = 8, 4, 3
	demoReasoning, demoVisible      = 300, 1000
	demoThink                       = 1500 * time.Millisecond
)

// demoRig is the demo's fleet of workers that strip reasoning from the history.
func demoRig(t *testing.T, cfg Config) *rig {
	cfg.Default = ModeOff // until the client hints
	g := newRig(t, rigConfig{Workers: 4, Thinking: true, Prefill: cfg, Engine: sim.EngineConfig{Profile: sim.LinearProfile{
		PrefillRate: 8000, Base: 2 * time.Millisecond, PerSeq: time.Nanosecond, PerKVToken: time.Nanosecond,
	}}})
	g.quiet = true
	return g
}

// ServeHTTP makes the rig an OpenAI endpoint, so that the bench client can play on it.
func (g *rig) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method == http.MethodGet {
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		return
	}
	body, _ := io.ReadAll(q.Body)
	v := new(openai.Request)
	if err := openai.ParseRequest(openai.Chat, body, v); err != nil {
		g.t.Error(err)
		return
	}
	prompt := g.identify(q.Context(), v, body, kv.Namespace{})
	t := g.prefill.Arrived(Arrival{Request: v, Body: body, Hint: q.Header.Get("X-Speculative-Prefill")})
	lease, err := g.router.Route(q.Context(), &router.Request{
		Model: "m", Prompt: prompt, Stream: true, FirstTurn: v.FirstTurn, PinRank: -1, MaxTokens: -1,
	})
	if err != nil {
		g.t.Error(err)
		return
	}
	worker := lease.Worker()
	g.prefill.Yield(worker)
	id := fnv.New64a()
	_, _ = id.Write(body)
	reasoning, reply := someText(fmt.Sprint(id.Sum64(), "r"), demoReasoning), someText(fmt.Sprint(id.Sum64()), demoVisible)
	output := generation(reasoning, reply, "")
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(data string) {
		t.Observe(openai.Event{Data: []byte(data)})
		_, _ = io.WriteString(w, "data: "+data+"\n\n")
		w.(http.Flusher).Flush()
	}
	begin := time.Now()
	x := g.engines[worker.ID].submit(prompt.Tokens, output)
	<-x.first
	ttft := time.Since(begin)
	lease.FirstToken()
	send(`{"choices":[{"index":0,"delta":{"role":"assistant","reasoning":` + quote(reasoning) + `}}]}`)
	<-x.done
	lease.Progress(len(output))
	u := openai.Usage{PromptTokens: len(prompt.Tokens), CompletionTokens: len(output), CachedTokens: x.seq.CachedTokens, ReasoningTokens: -1}
	send(`{"choices":[{"index":0,"delta":{"content":` + quote(reply) + `}}]}`)
	send(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	send(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`,
		u.PromptTokens, u.CompletionTokens, u.CachedTokens))
	send("[DONE]")
	lease.Done(router.Outcome{OK: true, CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens})
	t.Finish(End{OK: true, Worker: worker, Prompt: prompt, TTFT: ttft, Usage: u})
}

// pipes is a listener in memory whose connections know deadlines.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.conns <- far
	return near, nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// withBench runs play with a client's settings for the demo's workload on the rig.
func withBench(t *testing.T, g *rig, play func(bench.Config)) {
	ln := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: g}
	go func() { _ = server.Serve(ln) }() // ended by Close
	transport := &http.Transport{DialContext: ln.dial, MaxIdleConnsPerHost: demoUsers}
	play(bench.Config{
		URL: "http://rig", Users: demoUsers, Turns: demoTurns, UserTokens: 20, MaxCompletionTokens: demoReasoning + demoVisible,
		MeanDelay: demoThink, Stagger: demoThink, Transport: transport,
	})
	transport.CloseIdleConnections()
	_ = server.Close()
	synctest.Wait()
	g.close()
}

// TestHoldout_AgreesWithBenchAB: on the demo's workload what the holdout says that warming
// saves is what "bench ab" finds, within both intervals.
func TestHoldout_AgreesWithBenchAB(t *testing.T) {
	var ab *report.AB
	synctest.Test(t, func(t *testing.T) {
		withBench(t, demoRig(t, Config{}), func(c bench.Config) {
			var err error
			if ab, err = bench.AB(t.Context(), bench.ABConfig{Config: c, Pairs: demoPairs}); err != nil {
				t.Fatal(err)
			}
		})
	})
	var got Comparison
	synctest.Test(t, func(t *testing.T) {
		g := demoRig(t, Config{Holdout: 0.5})
		withBench(t, g, func(c bench.Config) {
			c.Hint = bench.HintOn
			for seed := uint64(1); got.Held+got.Warmed < 200; seed++ {
				if seed > 20 {
					t.Fatalf("only %d held and %d warmed turns returned", got.Held, got.Warmed)
				}
				c.Seed, c.Salt = seed, fmt.Sprintf("%08x", seed)
				if _, err := bench.Run(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				got = g.prefill.Debug().Headline
			}
		})
	})
	h := ab.Result.Headline
	mean := ab.Result.Others[slices.IndexFunc(ab.Result.Others, func(e report.Estimate) bool { return e.Name == "TTFT mean, turns ≥ 2" })]
	base := time.Duration(mean.A).Seconds()
	low, high := base*(1-mean.High), base*(1-mean.Low) // the interval of what bench ab says is saved
	t.Logf("saved a turn: holdout %.4f s [%.4f, %.4f] of %d held and %d warmed; bench ab %.4f s [%.4f, %.4f]",
		got.SavedSeconds.Value, got.SavedSeconds.Low, got.SavedSeconds.High, got.Held, got.Warmed, base*(1-mean.Ratio), low, high)
	t.Logf("TTFT: holdout × %.3f [%.3f, %.3f] (geometric mean); bench ab × %.3f [%.3f, %.3f] (p50), %s",
		got.Ratio.Value, got.Ratio.Low, got.Ratio.High, h.Ratio, h.Low, h.High, ab.Result.Verdict)
	if ab.Result.Verdict != report.Better || h.High > 0.6 || got.Ratio.High > 0.6 {
		t.Errorf("bench ab says %s, × %.3f [%.3f, %.3f]; the holdout %+v", ab.Result.Verdict, h.Ratio, h.Low, h.High, got.Ratio)
	}
	if !got.SavedSeconds.Known || got.SavedSeconds.Low > high || got.SavedSeconds.High < low {
		t.Errorf("the holdout saves %+v s, bench ab %.4f to %.4f", got.SavedSeconds, low, high)
	}
}
