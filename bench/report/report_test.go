package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmroute/warmroute/internal/script"
)

func millis(n float64) Micros { return Micros(n * float64(time.Millisecond)) }

func ptr[T any](v T) *T { return &v }

// turn makes a record whose numbers follow from user and turn.
func turn(user, n int, scale float64) Record {
	ttft := millis(scale * (200 + 40*float64(n) + 7*float64(user)))
	return Record{User: user, Turn: n, OK: true, TTFT: ttft, E2E: ttft + millis(990), FirstOutput: ptr(ttft), ITL: ptr(millis(10)), Deltas: 100,
		Planned: millis(2500 * float64(n)), End: millis(2500*float64(n) + 1200), Lag: millis(.1), Finish: "length",
		PromptTokens: ptr(150 + 250*n), CachedTokens: ptr(128 * n), CompletionTokens: ptr(100)}
}

// sample makes a run of 10 users × 3 turns.
func sample(scale float64) *Run {
	r := &Run{Version: "v1", URL: "http://localhost:8000/v1", Model: "m", Salt: "0000cafe", Duration: millis(7000),
		Workload: Workload{Users: 10, Turns: 3, UserTokens: 128, MaxCompletionTokens: 100, MeanDelay: millis(1500), Stagger: millis(1000), IgnoreEOS: true, Seed: 42, Plan: "0123456789abcdef"}}
	for user := range 10 {
		for n := range 3 {
			r.Records = append(r.Records, turn(user, n, scale))
		}
	}
	return r
}

// vary changes a sample as the words of a script say.
func vary(r *Run, args []string) {
	for _, a := range args {
		switch a {
		case "failures": // user 3 fails in turn 2, user 4 in turn 3
			var kept []Record
			for _, q := range r.Records {
				switch {
				case q.User == 3 && q.Turn == 2:
					continue
				case q.User == 3 && q.Turn == 1:
					q = Record{User: 3, Turn: 1, Failure: "status 503", Error: "no workers", Planned: q.Planned}
				case q.User == 4 && q.Turn == 2:
					q.OK, q.Failure, q.Error = false, "broken stream", "after 12 chunks: connection reset by peer"
				}
				kept = append(kept, q)
			}
			r.Records = kept
		case "reasoning":
			for i := range r.Records {
				q := &r.Records[i]
				q.FirstOutput, q.ReasoningTokens = ptr(q.TTFT+millis(300)), ptr(30)
			}
		case "nocached":
			for i := range r.Records {
				r.Records[i].CachedTokens = nil
			}
		case "nousage":
			for i := range r.Records {
				q := &r.Records[i]
				q.PromptTokens, q.CachedTokens, q.CompletionTokens, q.ReasoningTokens = nil, nil, nil, nil
			}
		case "interrupted":
			r.Interrupted, r.Records = true, r.Records[:20]
			r.Cancelled = 4
		case "late":
			for i := range r.Records {
				r.Records[i].Lag = millis(float64(i) * 3)
			}
		case "nodone":
			r.Records[0].NoDone = true
		case "burst":
			r.Workload.Stagger = 0
		case "spec":
			r.Speculative = true
		case "seed":
			r.Workload.Seed = 43
		case "plan":
			r.Workload.Plan, r.Workload.Users, r.Workload.MeanDelay = "x", 20, 0
		case "version":
			r.Workload.Plan, r.Version = "x", "v2"
		case "salt":
			r.Salt = "0000beef"
		case "none":
			r.Records = nil
		}
	}
}

// TestReport_Golden pins what people read.
func TestReport_Golden(t *testing.T) {
	script.RunDir(t, filepath.Join("testdata"), func(t *testing.T) func(*script.Cmd) string {
		return func(c *script.Cmd) string {
			var out bytes.Buffer
			switch c.Name {
			case "run":
				r := sample(1)
				vary(r, c.Args)
				r.Summarise()
				if err := r.WriteText(&out); err != nil {
					t.Fatal(err)
				}
			case "compare": // a's changes in Args, b's in Input
				a, b := sample(1), sample(c.Float("scale", .5))
				vary(a, c.Args)
				vary(b, strings.Fields(c.Input))
				a.Summarise()
				b.Summarise()
				if err := Compare(&out, "baseline.json", "specprefill.json", a, b); err != nil {
					var refusal *Refusal
					if !errors.As(err, &refusal) || out.Len() > 0 {
						t.Errorf("%T, %q printed", err, out.String())
					}
					return err.Error()
				}
			case "ab":
				x := sampleAB(c)
				x.Judge()
				if err := x.WriteText(&out); err != nil {
					t.Fatal(err)
				}
			case "verdict":
				x := sampleAB(c)
				x.Judge()
				return x.Sentence()
			default:
				t.Fatalf("%s: unknown command", c.Pos)
			}
			return out.String()
		}
	})
}

// sampleAB makes an A/B run; each block's times are scaled by a fixed noise.
func sampleAB(c *script.Cmd) *AB {
	base := sample(1)
	x := &AB{Version: "v1", URL: base.URL, Model: "m", Workload: base.Workload, Pairs: c.Int("pairs", 3), Duration: millis(61_000)}
	noise := []float64{1, 1.02, .99, 1.01, .98, 1.03, 1, .97}
	n := 0
	for p := range x.Pairs {
		first := p%4 == 1 || p%4 == 2
		for _, treated := range []bool{first, !first} {
			scale := noise[n%len(noise)]
			n++
			if treated {
				scale *= c.Float("effect", .5)
			}
			r := sample(scale)
			b := Block{Pair: p, Treatment: treated, Duration: millis(9000)}
			for _, a := range c.Args {
				switch a {
				case "aa":
					x.AA = true
				case "interrupted":
					x.Interrupted = true
					if p == x.Pairs-1 {
						b.Interrupted = true
					}
				case "proxy":
					if treated {
						b.Counters = map[string]float64{`warmroute_prefill_tokens_total{kind="sent"}`: 2345, `warmroute_prefill_outcomes_total{outcome="used",reason=""}`: 19,
							`warmroute_prefill_outcomes_total{outcome="wasted",reason="evicted"}`: 1, "warmroute_prefill_duration_seconds_sum": 1.25}
						for i := range r.Records {
							q := &r.Records[i]
							q.Speculation = "none"
							if q.Turn > 0 {
								q.Speculation, *q.CachedTokens = "used", 100+240*q.Turn
							}
						}
					} else {
						b.Counters = map[string]float64{`warmroute_prefill_tokens_total{kind="sent"}`: 0}
					}
				case "failures", "nousage", "late":
					if treated {
						vary(r, []string{a})
					}
				case "short":
					if treated {
						for i := range r.Records {
							*r.Records[i].CompletionTokens = 60
						}
					}
				case "prompts":
					if treated {
						for i := range r.Records {
							*r.Records[i].PromptTokens += 200
						}
					}
				case "warm":
					if treated {
						for i := range r.Records {
							if r.Records[i].Turn == 0 {
								*r.Records[i].CachedTokens = 64
							}
						}
					}
				case "dead":
					r.Records = nil
				}
			}
			b.Records = r.Records
			x.Blocks = append(x.Blocks, b)
		}
	}
	return x
}

// TestRun_DynamoKeys: a file has the keys of Dynamo's multiturn_bench with their meaning:
// microseconds, turns from 0.
func TestRun_DynamoKeys(t *testing.T) {
	r := sample(1)
	vary(r, []string{"failures", "spec"})
	r.Summarise()
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	type stats struct {
		Turn, Count int
		Min         int64 `json:"min_us"`
		P50         int64 `json:"p50_us"`
		P95         int64 `json:"p95_us"`
		P99         int64 `json:"p99_us"`
		Max         int64 `json:"max_us"`
	}
	var d struct {
		NumUsers   int     `json:"num_users"`
		NumTurns   int     `json:"num_turns"`
		Total      int     `json:"total_requests"`
		Successful int     `json:"successful_requests"`
		Failed     int     `json:"failed_requests"`
		Spec       bool    `json:"speculative_prefill"`
		TTFT       stats   `json:"aggregate_ttft"`
		Latency    stats   `json:"aggregate_latency"`
		TurnTTFT   []stats `json:"per_turn_ttft"`
		TurnLat    []stats `json:"per_turn_latency"`
		Raw        []struct {
			User    int   `json:"user_id"`
			Turn    int   `json:"turn"`
			TTFT    int64 `json:"ttft_us"`
			Total   int64 `json:"total_latency_us"`
			Success bool  `json:"success"`
		} `json:"raw_results"`
	}
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.NumUsers != 10 || d.NumTurns != 3 || d.Total != 29 || d.Successful != 27 || d.Failed != 2 || !d.Spec {
		t.Errorf("%+v", d)
	}
	// Turn 1: 200 + 7·user ms over 10 users.
	if got, want := d.TurnTTFT[0], (stats{0, 10, 200000, 231500, 259850, 262370, 263000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(d.Raw) != 29 || d.Raw[4].User != 1 || d.Raw[4].Turn != 1 || d.Raw[4].TTFT != 247000 || d.Raw[4].Total != 1237000 || !d.Raw[4].Success {
		t.Errorf("%+v", d.Raw[4])
	}
	if len(d.TurnLat) != 3 || d.Latency.Max != d.TurnLat[2].Max {
		t.Errorf("%+v", d.TurnLat)
	}
	if !strings.Contains(out.String(), `"percentiles": "type 7`) {
		t.Error("the file does not say what its percentiles are")
	}
}

// TestRun_FileRoundTrip: reading a file gives what was written, absent counts included.
func TestRun_FileRoundTrip(t *testing.T) {
	r := sample(1)
	vary(r, []string{"failures", "reasoning"})
	r.Records[2].CachedTokens = nil
	r.Records[5].Gaps = []Micros{millis(1), millis(2)}
	r.Summarise()
	r.Records[5].Gaps = nil // no file holds them, only their summary
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	back, err := ReadRun(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, back); d != "" {
		t.Error(d)
	}
	if back.Records[2].CachedTokens != nil {
		t.Error("an absent count became a number")
	}
}

func TestAB_FileRoundTrip(t *testing.T) {
	x := sampleAB(&script.Cmd{Args: []string{"proxy"}, Vals: map[string]string{}})
	x.Judge()
	var out bytes.Buffer
	if err := x.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	back, err := ReadAB(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if back.Sentence() != x.Sentence() || back.Result.Verdict != Better {
		t.Errorf("%s\n%s", back.Sentence(), x.Sentence())
	}
	if _, err := ReadAB(strings.NewReader(`{"format":"x"}`)); err == nil {
		t.Error("any format is read")
	}
}

func TestReadRun_Refuses(t *testing.T) {
	f := func(file, want string) {
		t.Helper()
		if _, err := ReadRun(strings.NewReader(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v lacks %q", file, err, want)
		}
	}
	f("hello", "not JSON")
	f(`{"num_users":10}`, "Dynamo")
	f(`{"format":"warmroute-bench-ab/1"}`, "bench ab")
	f(`{"format":"warmroute-bench/9"}`, "warmroute-bench/9")
}

// TestEstimate: three pairs by hand. Log ratios ln .5, ln .6, ln .4: mean −.7047,
// deviation .2028, t.975 of 2 degrees 4.3027.
func TestEstimate(t *testing.T) {
	var pairs []pair
	for _, b := range []float64{50, 60, 40} {
		one := func(ms float64) []Record { return []Record{{Turn: 1, OK: true, TTFT: millis(ms)}} }
		pairs = append(pairs, pair{one(100), one(b)})
	}
	e, ok := estimate("x", pairs, ttft, later, median)
	if !ok {
		t.Fatal("no estimate")
	}
	near(t, "ratio", e.Ratio, math.Cbrt(.5*.6*.4), 1e-9)
	half := 4.30265 * .203061 / math.Sqrt(3)
	near(t, "low", e.Low, e.Ratio*math.Exp(-half), 1e-4)
	near(t, "high", e.High, e.Ratio*math.Exp(half), 1e-4)
	near(t, "p", e.P, .026, .001)
	if !e.differs() {
		t.Error("no difference")
	}
	if _, ok := estimate("x", append(pairs, pair{pairs[0].a, nil}), ttft, later, median); ok {
		t.Error("a block without values is estimated")
	}
	same, _ := estimate("x", []pair{{pairs[0].a, pairs[0].a}, {pairs[1].a, pairs[1].a}}, ttft, later, median)
	if same.differs() || same.P != 1 {
		t.Errorf("equal blocks differ: %+v", same)
	}
	tiny := Estimate{Ratio: .998, Low: .997, High: .999}
	if tiny.differs() {
		t.Error("0.2 % is called a difference")
	}
}

// TestMicros: whole microseconds, rounded; null leaves zero.
func TestMicros(t *testing.T) {
	for in, want := range map[time.Duration]string{1499: "1", 1500: "2", 0: "0", -2500: "-3", time.Hour: "3600000000"} {
		b, err := json.Marshal(Micros(in))
		if err != nil || string(b) != want {
			t.Errorf("%v: %s %v", in, b, err)
		}
	}
	var m Micros
	if err := json.Unmarshal([]byte("2.5"), &m); err != nil || time.Duration(m) != 2500 {
		t.Error(m, err)
	}
	if err := json.Unmarshal([]byte(`"x"`), &m); err == nil {
		t.Error(fmt.Sprint("text is a time: ", m))
	}
}
