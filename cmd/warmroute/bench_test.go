package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/sim"
)

// fastWorker runs a simulated worker that is 100 times faster than a real one and returns
// its URL.
func fastWorker(t *testing.T) string {
	t.Helper()
	w, err := sim.NewServer(sim.Config{Engine: sim.EngineConfig{SpeedUp: 100}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }() // ended by the cleanup
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w.URL()
}

// executeSplit runs one command line and returns what it writes to stdout and stderr.
func executeSplit(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, diag bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&diag)
	root.SetArgs(args)
	err = root.ExecuteContext(ctx)
	return out.String(), diag.String(), err
}

// TestBench_DynamoCommands: the three commands of Dynamo's README, after `warmroute
// bench`, with the think time cut; and compare on what they wrote.
func TestBench_DynamoCommands(t *testing.T) {
	url := fastWorker(t)
	dir := t.TempDir()
	base, spec := filepath.Join(dir, "baseline.json"), filepath.Join(dir, "specprefill.json")

	out, diag, err := executeSplit(t.Context(), "bench", "--url", url, "--ping")
	if err != nil || !strings.Contains(out, "1 planned, 1 answered") || !strings.Contains(diag, "user 0 turn 1/1: TTFT") {
		t.Fatalf("%v\n%s\n%s", err, out, diag)
	}

	common := strings.Fields("bench --url " + url + " --num-users 10 --num-turns 5 --num-user-tokens 128 --max-completion-tokens 256 --mean-delay-ms 20")
	out, diag, err = executeSplit(t.Context(), append(common, "--output", base, "--verbose")...)
	if err != nil {
		t.Fatalf("%v\n%s", err, diag)
	}
	if n := strings.Count(diag, "\n"); n != 50 {
		t.Errorf("%d lines for 50 turns:\n%s", n, diag)
	}
	for _, want := range []string{"50 planned, 50 answered, 0 failed", "TTFT, ms", "ITL, ms", "E2E, ms", "p95", "tokens (usage"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
	if _, diag, err = executeSplit(t.Context(), append(common, "--speculative-prefill", "--output", spec, "--verbose")...); err != nil {
		t.Fatalf("%v\n%s", err, diag)
	}
	raw, err := os.ReadFile(spec)
	if err != nil {
		t.Fatal(err)
	}
	var d map[string]json.RawMessage
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"num_users": "10", "num_turns": "5", "total_requests": "50", "successful_requests": "50", "failed_requests": "0", "speculative_prefill": "true"} {
		if string(d[key]) != want {
			t.Errorf("%s is %s, want %s", key, d[key], want)
		}
	}
	var turns []report.TurnSummary
	if err := json.Unmarshal(d["per_turn_ttft"], &turns); err != nil || len(turns) != 5 || turns[4].Count != 10 {
		t.Errorf("per_turn_ttft: %v %v", err, turns)
	}

	out, _, err = executeSplit(t.Context(), "bench", "compare", base, spec)
	if err != nil || !strings.Contains(out, "turns ≥ 2") || !strings.Contains(out, "speculative prefill on, 50 turns answered") {
		t.Errorf("%v\n%s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}

	// Another seed is another workload.
	other := filepath.Join(dir, "other.json")
	if _, diag, err := executeSplit(t.Context(), append(common, "--seed", "43", "--mean-delay-ms", "0", "--num-turns", "1", "--output", other)...); err != nil {
		t.Fatalf("%v\n%s", err, diag)
	}
	if out, _, err = executeSplit(t.Context(), "bench", "compare", base, other); err == nil || !strings.Contains(err.Error(), "different seeds, 42 and 43") || out != "" {
		t.Errorf("%v %s", err, out)
	}
}

func TestBenchAB_Command(t *testing.T) {
	url := fastWorker(t)
	file := filepath.Join(t.TempDir(), "ab.json")
	out, diag, err := executeSplit(t.Context(), "bench", "ab", "--aa", "--url", url, "--num-users", "2", "--num-turns", "2", "--pairs", "3", "--settle", "1ms",
		"--max-completion-tokens", "4", "--mean-delay-ms", "1", "--output", file, "--verbose")
	if !strings.Contains(out, "3 pairs of interleaved blocks (AB BA BA)") || !strings.Contains(out, "verdict: ") {
		t.Fatalf("%v\n%s\n%s", err, out, diag)
	}
	// Microseconds on a shared machine can differ by chance; everything else is an error.
	if err != nil && !strings.Contains(err.Error(), "A/A run differs") {
		t.Error(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := report.ReadAB(f)
	if err != nil || len(x.Blocks) != 6 || !x.AA {
		t.Errorf("%v %+v", err, x)
	}
	if _, _, err := executeSplit(t.Context(), "bench", "compare", file, file); err == nil || !strings.Contains(err.Error(), "bench ab") {
		t.Errorf("compare takes a file of ab: %v", err)
	}
	// Without what --metrics-url would say.
	if _, _, err := executeSplit(t.Context(), "bench", "ab", "--url", url, "--metrics-url", url+"/metrics", "--num-users", "1"); err == nil || !strings.Contains(err.Error(), "admin address") {
		t.Errorf("an engine's metrics: %v", err)
	}
}

// TestBench_Interrupted: Ctrl-C prints and writes what was measured.
func TestBench_Interrupted(t *testing.T) {
	url := fastWorker(t)
	file := filepath.Join(t.TempDir(), "out.json")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &syncBuffer{}
	done := make(chan error, 1)
	var out bytes.Buffer
	go func() { // ended by done
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(log)
		root.SetArgs([]string{"bench", "--url", url, "--num-users", "2", "--num-turns", "3", "--max-completion-tokens", "4", "--mean-delay-ms", "3600000", "--stagger", "0", "--output", file, "-v"})
		done <- root.ExecuteContext(ctx)
	}()
	eventually(t, "two turns", func() bool { return strings.Count(log.String(), "TTFT") == 2 })
	cancel()
	select {
	case err := <-done:
		if err == nil || err.Error() != "interrupted after 2 of 6 turns" {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the run does not end")
	}
	if !strings.Contains(out.String(), "6 planned, 2 answered, 0 failed, 4 dropped, 0 cancelled") || !strings.Contains(out.String(), "interrupted: ") {
		t.Error(out.String())
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestBench_BadInput(t *testing.T) {
	f := func(line string, want ...string) {
		t.Helper()
		out, _, err := executeSplit(t.Context(), strings.Fields(line)...)
		if err == nil {
			t.Fatalf("%s is accepted: %s", line, out)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q lacks %q", line, err, w)
			}
		}
	}
	dir := t.TempDir()
	notOurs := filepath.Join(dir, "x.json")
	if err := os.WriteFile(notOurs, []byte("{\n  broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	f("bench ba", "ba", "ab and compare")
	f("bench --num-user 3", "--num-user")
	f("bench --num-users 0", "--num-users 0")
	f("bench --url localhost:8000", "http://localhost:8000")
	f("bench --header x", "--header", "Name:value")
	f("bench --mean-delay-ms -1", "--mean-delay-ms")
	f("bench --output "+dir, "not a regular file")
	f("bench --output "+filepath.Join(dir, "absent", "x.json"), "--output "+filepath.Join(dir, "absent", "x.json")+": there is no directory "+filepath.Join(dir, "absent"))
	f("bench --output bench.go/x.json", "bench.go is no directory")
	f("bench --output /proc/x.json", "--output /proc/x.json: ")
	f("bench --ping --num-users 3 --num-turns 2", "--ping", "--num-users, --num-turns")
	f("bench --extra-body {", "--extra-body")
	f("bench --url http://127.0.0.1:1 --ping", "127.0.0.1:1", "connection refused", "is the endpoint up")
	f("bench --url http://127.0.0.1:1 --ping --model m", "none of 1 turns was answered", "connection refused")
	f("bench ab --pairs 2", "--pairs 2", "at least 3")
	f("bench ab --num-turns 1", "--num-turns 1")
	f("bench ab --speculative-prefill=false", "--aa")
	f("bench compare a.json", "two files")
	f("bench compare absent.json absent.json", "absent.json")
	f("bench compare "+notOurs+" "+notOurs, "x.json, byte 5", "not JSON")
}

// TestProgress_Line: what a watcher sees.
func TestProgress_Line(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 5, 50, true)
	ms := func(n int) report.Micros { return report.Micros(n) * report.Micros(time.Millisecond) }
	n := 128
	first := ms(300)
	p.turn(&report.Record{User: 3, Turn: 1, OK: true, TTFT: ms(120), FirstOutput: &first, E2E: ms(12_500), CompletionTokens: &n, PromptTokens: &n, CachedTokens: &n, Worker: "w1", Speculation: "used"})
	p.turn(&report.Record{User: 4, Turn: 0, Failure: "status 503", Error: "no workers"})
	p.block(2, 10, true)
	got := out.String() + p.lineLocked(62*time.Second)
	want := `user 3 turn 2/5: TTFT 120.0 ms, first output 300.0 ms, E2E 12.5 s, 128 tokens, prompt 128, cached 128, w1, speculation used
user 4 turn 1/5: failed, status 503: no workers
block 3 of 10 (B): 2 of 50 turns, 1 failed, TTFT p50 of the last 1: 120.0 ms, 1m2s`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
