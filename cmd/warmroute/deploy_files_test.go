package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"
)

// documents returns every YAML document below deploy/, by file.
func documents(t *testing.T) map[string][]any {
	t.Helper()
	out := map[string][]any{}
	for _, pattern := range []string{"../../deploy/*.yaml", "../../deploy/*/*.yaml", "../../deploy/*/*.yml"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for dec := yaml.NewDecoder(bytes.NewReader(raw)); ; {
				var v any
				if err := dec.Decode(&v); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", f, err)
				}
				out[f] = append(out[f], v)
			}
		}
	}
	return out
}

// commandLines finds the command lines of our verbs in a document: compose commands and
// the args of containers.
func commandLines(v any, found func(args []string)) {
	switch v := v.(type) {
	case map[string]any:
		for k, c := range v {
			if s, ok := c.(string); ok && k == "command" {
				found(strings.Fields(s))
			}
			if list, ok := c.([]any); ok && k == "args" {
				var args []string
				for _, a := range list {
					s, _ := a.(string)
					args = append(args, s)
				}
				found(args)
			}
			commandLines(c, found)
		}
	case []any:
		for _, c := range v {
			commandLines(c, found)
		}
	}
}

// TestDeploy_CommandLinesParse: every command line of ours in compose, k8s and systemd
// files is one that the binary takes.
func TestDeploy_CommandLinesParse(t *testing.T) {
	seen := 0
	check := func(file string, args []string) {
		if len(args) == 0 || args[0] != "serve" && args[0] != "relay" {
			return
		}
		seen++
		cmd, rest, err := newRoot().Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil {
			t.Errorf("%s: %v: %v", file, args, err)
		}
	}
	for file, docs := range documents(t) {
		for _, d := range docs {
			commandLines(d, func(args []string) { check(file, args) })
		}
	}
	units, _ := filepath.Glob("../../deploy/systemd/*.service")
	for _, f := range units {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/warmroute (.*)$`).FindStringSubmatch(string(raw))
		if m == nil {
			t.Errorf("%s starts something else", f)
			continue
		}
		check(f, strings.Fields(m[1]))
	}
	if seen < 6 {
		t.Errorf("only %d command lines were found", seen)
	}
}

// TestDeploy_ConfigMapParses: the configuration in the k8s example is valid.
func TestDeploy_ConfigMapParses(t *testing.T) {
	for _, d := range documents(t)["../../deploy/k8s/warmroute.yaml"] {
		m, _ := d.(map[string]any)
		if m["kind"] != "ConfigMap" {
			continue
		}
		data, _ := m["data"].(map[string]any)
		text, _ := data["warmroute.yaml"].(string)
		path := filepath.Join(t.TempDir(), "warmroute.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := loadConfig(path, pflag.NewFlagSet("", pflag.ContinueOnError))
		if err != nil || len(c.Allow) == 0 || c.NATS.URL == "" {
			t.Fatalf("%+v %v", c, err)
		}
		return
	}
	t.Fatal("the k8s example has no ConfigMap")
}
