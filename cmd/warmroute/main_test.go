package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/warmroute/warmroute/internal/script"
)

// execute runs one command line and returns what it prints.
func execute(args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

// TestHelp_Golden pins what each verb says of itself.
func TestHelp_Golden(t *testing.T) {
	script.RunDir(t, filepath.Join("testdata", "help"), func(t *testing.T) func(*script.Cmd) string {
		return func(c *script.Cmd) string {
			out, err := execute(append(c.Args, "--help")...)
			if err != nil {
				t.Error(err)
			}
			return out
		}
	})
}

// TestCommandLine_BadInput: a wrong command line exits with the usage code and one
// message that names the thing and where to look.
func TestCommandLine_BadInput(t *testing.T) {
	f := func(args []string, want ...string) {
		t.Helper()
		out, err := execute(args...)
		if err == nil {
			t.Fatalf("%v is accepted: %s", args, out)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %q lacks %q", args, err, w)
			}
		}
	}
	f([]string{"server"}, "unknown command", "serve")
	f([]string{"serve", "--workr", "x"}, "--workr", "serve --help")
	f([]string{"serve", "http://gpu1"}, "http://gpu1", "flags only")
	f([]string{"serve"}, "no workers")
	f([]string{"serve", "--config", "absent.yaml"}, "--config", "absent.yaml")
	f([]string{"relay"}, "--nats")
	f([]string{"relay", "--nats", "nats://127.0.0.1:1"}, "--events")
	f([]string{"relay", "--nats", "nats://127.0.0.1:1", "--events", "tcp://127.0.0.1:1"}, "url")
	f([]string{"relay", "--nats", "http://h", "--events", "tcp://127.0.0.1:1", "--url", "http://127.0.0.1:1"}, "--nats", "nats://")
	f([]string{"doctor"}, "no worker", "warmroute doctor")
	f([]string{"doctor", "gpu1:8000"}, "gpu1:8000", "http://")
	f([]string{"doctor", "http://gpu1:8000", "--replay", "tcp://gpu1:5657"}, "--events")
	f([]string{"doctor", "http://gpu1:8000", "--events", "gpu1:5557"}, "gpu1:5557", "tcp://")
	for _, verb := range [][]string{{"serve", "--simulate", "1"}, {"worker"}} {
		f(append(verb, "--listen", "8050"), "--listen", `"8050"`, "did you mean :8050")
		f(append(verb, "--listen", "localhost"), "--listen", "did you mean localhost:8000")
		f(append(verb, "--listen", ":65536"), "--listen", "0 to 65535")
		f(append(verb, "--model-path", "./absent"), "--model-path", `"./absent"`, "no directory")
		f(append(verb, "--model-path", "/absent"), "--model-path", "no directory")
		f(append(verb, "--model-path", "Qwen3-8B"), "--model-path", "org/name")
		f(append(verb, "--model-path", "main.go"), "--model-path", "tokenizer.json")
	}
	f([]string{"serve", "--simulate", "1", "--admin", "8051"}, "--admin", "did you mean :8051")
	f([]string{"serve", "--simulate", "1", "--nats-listen", "4222"}, "--nats-listen", "did you mean :4222")
	f([]string{"relay", "--nats", "nats://127.0.0.1:1", "--events", "tcp://127.0.0.1:1", "--url", "http://127.0.0.1:1", "--metrics", "9100"}, "--metrics", ":9100")
	f([]string{"worker", "--like", "trt"}, "trt", "vllm or sglang")
	f([]string{"worker", "--layout", "v1"}, "v1")
	f([]string{"worker", "--profile", "cubic"}, "cubic", "linear or polynomial")
	f([]string{"worker", "--replay", "tcp://127.0.0.1:0"}, "events")
}

func TestRun_ExitCodes(t *testing.T) {
	stderr := os.Stderr
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = null
	defer func() { os.Stderr = stderr; null.Close() }()
	for _, c := range []struct {
		want int
		args []string
	}{
		{exitOK, []string{"serve", "--help"}},
		{exitUsage, []string{"serve", "--no-such-flag"}},
		{exitUsage, []string{"serve"}},
		{exitUsage, []string{"frobnicate"}},
		{exitError, []string{"worker", "--listen", "256.0.0.1:1"}},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("%v exits with %d, want %d", c.args, got, c.want)
		}
	}
}

// TestEnvironment_Stray: a variable that sets nothing is named with the nearest that would,
// and one that somebody else uses is not.
func TestEnvironment_Stray(t *testing.T) {
	got := strayVariables(newRoot(), []string{
		"WARMROUTE_MAX_INFLIGT=3", "WARMROUTE_MODELPATH=x", "WARMROUTE_ZZZ=1", "WARMROUTE_ALICE=sk-CANARY", // stray but for the last
		"WARMROUTE_LISTEN=:1", "WARMROUTE_CONFIG=f", "WARMROUTE_API_KEY=k", "WARMROUTE_RELAY_ID=r", "WARMROUTE_NUM_USERS=3", "WARMROUTE_PAIRS=3", "WARMROUTE_EMPTY=", "HOME=/",
		"WARMROUTE_DATA=x", "WARMROUTE_BENCH_TEXT=x", "WARMROUTE_SERVICE_HOST=10.0.0.1", "WARMROUTE_SERVICE_PORT=8000", "WARMROUTE_SERVICE_PORT_API=8000", "WARMROUTE_PORT=tcp://10.0.0.1:8000",
		"WARMROUTE_PORT_8000_TCP=x", "WARMROUTE_PORT_8000_TCP_ADDR=x", "WARMROUTE_ADMIN_SERVICE_HOST=x", "WARMROUTE_ADMIN_PORT_8001_TCP_PROTO=x",
	}, (&authConfig{Keys: []keyConfig{{SecretEnv: "WARMROUTE_ALICE"}}}).secretVariables)
	want := []string{
		"the variable WARMROUTE_MAX_INFLIGT is not known and has no effect, did you mean WARMROUTE_MAX_INFLIGHT",
		"the variable WARMROUTE_MODELPATH is not known and has no effect, did you mean WARMROUTE_MODEL_PATH",
		"the variable WARMROUTE_ZZZ is not known and has no effect",
	}
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}

// TestEnvironment_EachVerbWarns: whoever reads variables says which have no effect.
func TestEnvironment_EachVerbWarns(t *testing.T) {
	t.Setenv("WARMROUTE_LISTN", ":1")
	for _, args := range [][]string{
		{"serve", "--worker", "http://127.0.0.1:1", "--listen", "256.0.0.1:1"}, {"worker", "--listen", "256.0.0.1:1"},
		{"relay", "--nats", "nats://256.0.0.1:1", "--url", "http://127.0.0.1:1", "--events", "tcp://127.0.0.1:1", "--metrics", "256.0.0.1:1", "--state-dir", "/proc/absent"},
		{"bench", "--ping", "--url", "http://127.0.0.1:1"}, {"bench", "ab", "--url", "http://127.0.0.1:1"},
	} {
		out, err := execute(args...)
		if err == nil || strings.Count(out, "WARMROUTE_LISTN is not known and has no effect, did you mean WARMROUTE_LISTEN") != 1 {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := execute("version")
	if err != nil || !strings.HasPrefix(out, "warmroute ") || strings.Count(out, "\n") != 1 {
		t.Errorf("%q %v", out, err)
	}
}

// flagTable lists the flags of serve as the README shows them.
func flagTable() string {
	var b strings.Builder
	b.WriteString("| flag | default | what it does |\n|---|---|---|\n")
	newServe().Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		_, usage := pflag.UnquoteUsage(f)
		shown := f.DefValue
		if shown == "" || shown == "[]" || shown == "false" || shown == "0" {
			shown = ""
		} else {
			shown = "`" + shown + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, shown, strings.ReplaceAll(usage, "|", `\|`))
	})
	return b.String()
}
