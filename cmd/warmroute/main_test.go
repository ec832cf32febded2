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
