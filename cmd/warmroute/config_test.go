package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// parse returns the configuration of a command line and file, and the error's text.
func parse(t *testing.T, file string, args ...string) (config, string) {
	t.Helper()
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "warmroute.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := defaultConfig()
	given := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.bind(given)
	if err := given.Parse(args); err != nil {
		return config{}, err.Error()
	}
	c, err := loadConfig(path, given)
	if err != nil {
		return c, err.Error()
	}
	return c, ""
}

// TestConfig_ReferenceFile: deploy/warmroute.yaml parses, and every value in it that is
// not an example is the default.
func TestConfig_ReferenceFile(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/warmroute.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, msg := parse(t, string(raw))
	if msg != "" {
		t.Fatal(msg)
	}
	if len(got.Workers) != 2 || got.Workers[0].Events == "" || got.Workers[0].Replay == "" {
		t.Errorf("workers: %+v", got.Workers)
	}
	want := defaultConfig()
	want.Workers = got.Workers
	want.Allow, want.Aliases, want.Auth.Keys = got.Allow, got.Aliases, []keyConfig{}
	want.Tokens.Models = got.Tokens.Models
	want.Prefill.Models, want.Prefill.Keys = got.Prefill.Models, got.Prefill.Keys
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the reference shows other values than the defaults (-default +file):\n%s", d)
	}
}

func TestConfig_FlagsBeatEnvironmentBeatFile(t *testing.T) {
	file := "listen: :1\nadmin: 127.0.0.1:1\nrouting: {mode: random, retries: 7}\nlimits: {max_body: 2MiB}\nworkers: [{url: http://file}]\nmodel_aliases: {a: file}\n"
	t.Setenv("WARMROUTE_LISTEN", ":2")
	t.Setenv("WARMROUTE_MODE", "least-loaded")
	t.Setenv("WARMROUTE_WORKER", "http://env1 http://env2,ranks=2")
	t.Setenv("WARMROUTE_MODEL_ALIAS", "a=env,b=env")
	c, msg := parse(t, file, "--listen", ":3")
	if msg != "" {
		t.Fatal(msg)
	}
	if c.Listen != ":3" || c.Admin != "127.0.0.1:1" || c.Routing.Mode != "least-loaded" || c.Routing.Retries != 7 || c.Limits.MaxBody != 2<<20 {
		t.Errorf("merged: %+v", c)
	}
	if len(c.Workers) != 2 || c.Workers[1].URL != "http://env2" || c.Workers[1].Ranks != 2 {
		t.Errorf("workers: %+v", c.Workers)
	}
	if c.Aliases["a"] != "env" || c.Aliases["b"] != "env" {
		t.Errorf("aliases: %v", c.Aliases)
	}
	c, msg = parse(t, file, "--worker", "http://f1,id=x", "--worker", "http://f2", "--model-alias", "a=flag", "--grace", "3s", "--allow-announced", "10.0.0.0/8,gpu")
	if msg != "" {
		t.Fatal(msg)
	}
	if len(c.Workers) != 2 || c.Workers[0].ID != "x" || c.Aliases["a"] != "flag" || time.Duration(c.Limits.Grace) != 3*time.Second || len(c.Allow) != 2 {
		t.Errorf("flags: %+v", c)
	}
}

// TestConfig_EmptyFile: a file of comments leaves the defaults.
func TestConfig_EmptyFile(t *testing.T) {
	for _, file := range []string{"# nothing yet\n", "---\n", "{}\n", "\n"} {
		c, msg := parse(t, file, "--simulate", "1")
		want := defaultConfig()
		want.Simulate = 1
		if d := cmp.Diff(want, c); msg != "" || d != "" {
			t.Errorf("%q: %s\n%s", file, msg, d)
		}
	}
}

// TestConfig_BadInput: each mistake gives one message that names the setting and the
// fix.
func TestConfig_BadInput(t *testing.T) {
	f := func(file string, args []string, want ...string) {
		t.Helper()
		_, msg := parse(t, file, args...)
		if msg == "" {
			t.Errorf("%q %v is accepted", file, args)
		}
		for _, w := range want {
			if !strings.Contains(msg, w) {
				t.Errorf("%q %v: message %q lacks %q", file, args, msg, w)
			}
		}
	}
	f("", nil, "no workers", "--worker", "--simulate")
	f("workerz: []\n", nil, "warmroute.yaml: workerz (line 1)", "did you mean workers;", "known in the file are admin")
	f("routing:\n  mode: kv\n  max-inflght: 3\n", nil, "routing.… (line 3)", "did you mean max_inflight;", "known in routing are")
	f("max_queue: 3\n", nil, "max_queue (line 1)", "did you mean routing.max_queue;")
	f("workers: [{url: http://a, evnts: x}]\n", nil, "workers[0].evnts (line 1)", "did you mean events;")
	f("workers:\n  - http://a\n", nil, "workers[0] (line 2)", "api_key", "url")
	f("workers: http://a\n", nil, "workers (line 1)", "expected a list")
	f("- a\n", nil, "the file (line 1)", "section with the keys")
	f("routing:\n  - mode: kv\n", nil, "routing (line 2)", "section with the keys")
	f("simulate: 2\nrouting: {max_inflight: 1.5}\n", nil, "routing.max_inflight (line 2)", "whole number")
	f("simulate: 2\nspeculative_prefill: {holdout: x}\n", nil, "speculative_prefill.holdout (line 2)", "a number such as 0.05")
	f("tokenizer:\n  offline: maybe\n", nil, "tokenizer.offline (line 2)", "true or false")
	f("model_aliases: [a]\n", nil, "model_aliases (line 1)", "a: b")
	f("model_aliases: {a: x, a: y}\n", nil, "model_aliases.a (line 1)", "already defined")
	f("auth: {keys: [{name: a, modles: b}]}\n", nil, "line 1", "did you mean models;")
	f("listen: \"x\n", nil, "(line 1)", "listen")
	f("admin: {a: b}\n", nil, "admin (line 1)", "such as 127.0.0.1:8001")
	f("listen: :1\n---\nlisten: :2\n", nil, "more than one")
	f("listen: :1\nlisten: :2\n", nil, "listen (line 2)", "already defined in line 1")
	f("routing:\n  max_inflight: many\n", nil, "routing.max_inflight (line 2)", "whole number such as 1024")
	f("limits: {grace: soon}\n", nil, "limits.grace (line 1)", "soon", "duration such as 10s")
	f("limits: {max_body: big}\n", nil, "limits.max_body (line 1)", "big", "size such as 64MiB")
	f("workers: [{id: a}]\n", nil, "workers[0]", "url")
	f("workers: [{url: gpu:8000}]\n", nil, "workers[0]", "http://host:8000")
	f("workers: [{url: http://a, events: 'a:5557'}]\n", nil, "events", "tcp://host:5557")
	f("workers: [{url: http://a, replay: 'tcp://a:1'}]\n", nil, "replay", "events")
	f("workers: [{url: 'http://user:pw@a'}]\n", nil, "api_key")
	f("", []string{"--simulate", "2", "--mode", "fastest"}, "--mode", "round-robin")
	f("", []string{"--simulate", "2", "--max-inflight", "0"}, "--max-inflight", "at least 1")
	f("", []string{"--simulate", "2", "--retries", "-1"}, "--retries")
	f("", []string{"--simulate", "2", "--speculative-prefill", "maybe"}, "--speculative-prefill", "off, on, auto")
	f("speculative_prefill: {models: {bot: yes}}\nsimulate: 1\n", nil, "speculative_prefill.models.bot", "off, on, auto")
	f("", []string{"--simulate", "2", "--speculation-holdout", "1.5"}, "--speculation-holdout", "0 to 1")
	f("speculative_prefill: {keys: {alice: auto}}\nsimulate: 1\n", nil, "speculative_prefill.keys", "alice", "sha256sum")
	f("", []string{"--simulate", "2", "--drain-delay", "-1s"}, "--drain-delay")
	f("", []string{"--simulate", "99"}, "--simulate", "0 to 64")
	f("", []string{"--simulate", "2", "--log-level", "loud"}, "--log-level", "debug, info, warn, error")
	f("", []string{"--simulate", "2", "--log-format", "xml"}, "--log-format", "json")
	f("", []string{"--simulate", "2", "--max-body", "1"}, "--max-body", "1KiB")
	f("", []string{"--worker", "http://a,colour=red"}, "colour", "known are")
	f("", []string{"--worker", "http://a,ranks=two"}, "ranks", "two", "whole number such as 4")
	f("", []string{"--worker", "http://a,insecure_skip_verify=perhaps"}, "true or false")
	f("", []string{"--worker", "http://a,evnts=x"}, "did you mean events;")
	f("", []string{"--worker", "http://a,id"}, "key=value")
	f("", []string{"--max-body", "lots"}, "64MiB")
	f("", []string{"--workers", "x"}, "unknown flag")
}

// TestConfig_FormsOfValues: whatever YAML lets a number or a truth value be is taken, or
// refused in our words.
func TestConfig_FormsOfValues(t *testing.T) {
	for _, v := range []string{"4096", `"4096"`, "0x1000", "4_096", "&a 4096", "0o10000"} {
		if c, msg := parse(t, "simulate: 1\nrouting: {max_queue: "+v+"}\n"); msg != "" || c.Routing.MaxQueue != 4096 {
			t.Errorf("max_queue: %s is %d: %s", v, c.Routing.MaxQueue, msg)
		}
	}
	if _, msg := parse(t, "simulate: 1\nrouting: {max_queue: !!str 4096}\n"); strings.Contains(msg, "Go") {
		t.Error(msg)
	}
	for setting, values := range map[string][]string{
		"tokenizer.offline": {"yes", "1", `"true"`, "[]"}, "speculative_prefill.holdout": {".nan.", "[1]", "true"}, "routing.retries": {"1e3", "true", ".inf", "2.0"},
	} {
		section, key, _ := strings.Cut(setting, ".")
		for _, v := range values {
			if _, msg := parse(t, "simulate: 1\n"+section+":\n  "+key+": "+v+"\n"); !strings.Contains(msg, setting+" (line 3): expected ") {
				t.Errorf("%s: %s: %q", setting, v, msg)
			}
		}
	}
}

// TestConfig_BadNumbers: what is no number, time or truth value is named with the flag or
// the variable, and with the form that is expected.
func TestConfig_BadNumbers(t *testing.T) {
	f := func(flag, value, want string) {
		t.Helper()
		_, byFlag := execute("serve", "--simulate", "1", "--"+flag+"="+value)
		t.Setenv(envName(flag), value)
		_, byEnv := parse(t, "simulate: 1\n")
		t.Setenv(envName(flag), "")
		want = strconv.Quote(value) + " is not " + want
		if msg := fmt.Sprint(byFlag); !strings.HasPrefix(msg, "--"+flag+": "+want) {
			t.Errorf("--%s=%s: %s, want %s", flag, value, msg, want)
		}
		if byEnv != envName(flag)+": "+want {
			t.Errorf("%s=%s: %s, want %s", envName(flag), value, byEnv, want)
		}
	}
	f("max-inflight", "many", "a whole number such as 1024")
	f("retries", "1.5", "a whole number such as 2")
	f("max-queue", "99999999999999999999", "a whole number such as 4096")
	f("speculation-holdout", "half", "a number such as 0.05")
	f("offline", "perhaps", "true or false")
	f("grace", "3", "a duration such as 10s or 5m")
	f("max-body", "lots", "a size such as 64MiB")
	f("model-alias", "x", "name=value, separated by commas where there are several")
}

// TestConfig_Anchors: what is written once may be used twice, and merged.
func TestConfig_Anchors(t *testing.T) {
	c, msg := parse(t, "workers:\n  - &w {url: http://a, ranks: &two 2}\n  - {<<: *w, id: b}\n  - {url: http://c, ranks: *two}\nstate_dir:\n\"sse_heartbeat\": \"5s\"\n")
	if msg != "" || len(c.Workers) != 3 || c.Workers[1].URL != "http://a" || c.Workers[1].ID != "b" || c.Workers[1].Ranks != 2 || c.Workers[2].Ranks != 2 || c.Heartbeat != duration(5*time.Second) {
		t.Errorf("%s %+v", msg, c.Workers)
	}
}

// TestConfig_SecretsStayOut: no message repeats a credential.
func TestConfig_SecretsStayOut(t *testing.T) {
	for _, worker := range []string{
		"http://a,api_key=CANARY,colour=red", "http://u:CANARY@a,x", "http://u:CANARY@a", "http://a,api_key=x,CANARY",
	} {
		_, err := execute("serve", "--worker", worker)
		if err == nil || strings.Contains(err.Error(), "CANARY") || !strings.Contains(err.Error(), "--worker") {
			t.Errorf("%s: %v", worker, err)
		}
	}
	for _, file := range []string{
		"nats:\n  password: CANARY\n  fooo: x\n", "nats: {password: [CANARY]}\n", "workers: [{url: http://a, api_key: {CANARY: 1}}]\n",
		"workers: [{url: 'http://u:CANARY@a'}]\n",
	} {
		if _, msg := parse(t, file); msg == "" || strings.Contains(msg, "CANARY") {
			t.Errorf("%s: %s", file, msg)
		}
	}
}

func TestSize(t *testing.T) {
	f := func(in string, want int64, shown string) {
		t.Helper()
		var s size
		if err := s.Set(in); err != nil || int64(s) != want || s.String() != shown {
			t.Errorf("%s: %d %s %v, want %d %s", in, s, s.String(), err, want, shown)
		}
	}
	f("64MiB", 64<<20, "64MiB")
	f("1.5GiB", 3<<29, "1536MiB")
	f("2GB", 2e9, "1953125KiB")
	f("1000", 1000, "1000B")
	f("12 KiB", 12<<10, "12KiB")
}
