package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp/fasthttputil"

	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/sim"
)

// simulated runs a simulated worker in the bubble and returns a transport to it and
// what ends it.
func simulated(t *testing.T, cfg sim.Config) (*http.Transport, func()) {
	t.Helper()
	ln := fasthttputil.NewInmemoryListener()
	cfg.Listener = ln
	server, err := sim.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }() // ended by the returned func
	transport := &http.Transport{
		DialContext:         func(context.Context, string, string) (net.Conn, error) { return ln.Dial() },
		MaxIdleConnsPerHost: 100,
	}
	return transport, func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestRun_SimulatedWorker: the client against a simulated engine in virtual time: what it
// measures is what the engine's cost model says.
func TestRun_SimulatedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, stop := simulated(t, sim.Config{})
		defer stop()
		r, err := Run(t.Context(), Config{URL: "http://sim", Users: 2, Turns: 3, UserTokens: 400, MaxCompletionTokens: 20,
			MeanDelay: 2 * time.Second, Stagger: 2 * time.Minute, IgnoreEOS: true, Seed: 1, Salt: "00000001", Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		if r.Successful != 6 || r.Failed != 0 || r.Model != "sim" {
			t.Fatalf("%d answered, %d failed, model %s", r.Successful, r.Failed, r.Model)
		}
		for _, q := range r.Records {
			prompt, cached := *q.PromptTokens, *q.CachedTokens
			// One step for the prompt's uncached tokens (8,000 a second, 8 ms a step); in
			// this run no two turns overlap.
			want := 8*time.Millisecond + time.Duration(float64(prompt-cached)/8000*float64(time.Second))
			if got := time.Duration(q.TTFT); (got - want).Abs() > 10*time.Microsecond {
				t.Errorf("user %d turn %d: TTFT %v, want %v for %d − %d tokens", q.User, q.Turn, got, want, prompt, cached)
			}
			if *q.CompletionTokens != 20 || q.Lag != 0 {
				t.Errorf("user %d turn %d: %d tokens, lag %v", q.User, q.Turn, *q.CompletionTokens, q.Lag)
			}
			// A decode step: 8 ms, 0.1 ms for the sequence, 20 ns for each of its KV tokens.
			if itl := time.Duration(*q.ITL); itl < 8100*time.Microsecond || itl > 8200*time.Microsecond {
				t.Errorf("user %d turn %d: ITL %v", q.User, q.Turn, itl)
			}
			if q.Turn > 0 && cached == 0 {
				t.Errorf("user %d turn %d: nothing of the history is cached: the texts do not repeat", q.User, q.Turn)
			}
			if q.Turn == 0 && cached > 0 {
				t.Errorf("user %d: turn 1 found %d tokens cached", q.User, cached)
			}
		}
	})
}

// moody is an engine whose speed differs from block to block and step to step.
type moody struct {
	r          *rand.Rand
	mood       float64
	base       sim.LinearProfile
	treatment  float64 // log of the true effect
	conditions float64 // σ of the mood
}

func (m *moody) block(treatment bool) {
	m.mood = m.conditions * m.r.NormFloat64()
	if treatment {
		m.mood += m.treatment
	}
}

func (m *moody) Step(w sim.StepWork) time.Duration {
	return time.Duration(float64(m.base.Step(w)) * math.Exp(m.mood+.1*m.r.NormFloat64()))
}

// TestAB_SimulatedWorkers: whole A/B runs of the real client against a simulated engine in
// virtual time. A/A is called different in at most 7 %, and an engine that is 10 %
// faster for the treatment is found in at least 85 %. Full numbers, 400 and 200 runs,
// with WARMROUTE_SOAK=1.
func TestAB_SimulatedWorkers(t *testing.T) {
	same, changed := 6, 4
	if testing.Short() { // under the race detector
		same, changed = 2, 2
	}
	if os.Getenv("WARMROUTE_SOAK") != "" {
		same, changed = 400, 200
	}
	r := rand.New(rand.NewPCG(3, 5))
	verdicts := func(runs int, effect float64) map[string]int {
		out := map[string]int{}
		for range runs {
			synctest.Test(t, func(t *testing.T) {
				engine := &moody{r: r, treatment: math.Log(effect), conditions: .03}
				transport, stop := simulated(t, sim.Config{Engine: sim.EngineConfig{Profile: engine}})
				defer stop()
				x, err := AB(t.Context(), ABConfig{
					Config: Config{URL: "http://sim", Users: 10, Turns: 5, UserTokens: 128, MaxCompletionTokens: 4,
						MeanDelay: time.Second, Stagger: time.Second, IgnoreEOS: true, Seed: r.Uint64(), Transport: transport},
					OnBlock: func(_, _ int, treatment bool) { engine.block(treatment) },
				})
				if err != nil {
					t.Fatal(err)
				}
				out[x.Result.Verdict]++
				if x.Result.Verdict == report.NotComparable {
					t.Error(x.Result.Reason)
				}
			})
		}
		return out
	}
	aa := verdicts(same, 1)
	t.Log("A/A:", aa)
	if n := aa[report.Better] + aa[report.Worse]; n > max(same*7/100, 2) {
		t.Errorf("%d of %d A/A runs are called different", n, same)
	}
	ten := verdicts(changed, .9)
	t.Log("−10 %:", ten)
	if n := ten[report.Better]; n < changed*85/100 {
		t.Errorf("a true −10 %% is found in %d of %d runs", n, changed)
	}
}
