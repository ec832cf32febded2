package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/events"
)

// recorder notes the description of everything that is registered.
type recorder struct {
	*prometheus.Registry
	descs map[string]*prometheus.Desc
}

func newRecorder() *recorder {
	return &recorder{prometheus.NewRegistry(), map[string]*prometheus.Desc{}}
}

func (r *recorder) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }() // ends with the loop below
	for d := range ch {
		r.descs[d.String()] = d
	}
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

type metric struct{ name, help, labels string }

var descPattern = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}\}$`)

// metrics returns every warmroute_ metric that the recorder saw, by name.
func (r *recorder) metrics(t *testing.T) []metric {
	t.Helper()
	byName := map[string]metric{}
	for s := range r.descs {
		m := descPattern.FindStringSubmatch(s)
		if m == nil {
			t.Fatalf("unreadable description %s", s)
		}
		if strings.HasPrefix(m[1], "warmroute_") {
			var help string
			if _, err := fmt.Sscanf(m[2], "%q", &help); err != nil {
				t.Fatal(err)
			}
			byName[m[1]] = metric{m[1], help, strings.ReplaceAll(m[3], ",", ", ")}
		}
	}
	var out []metric
	for _, m := range byName {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return out
}

// registered returns the metrics of a proxy and of a relay.
func registered(t *testing.T) []metric {
	t.Helper()
	cfg := defaultConfig()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.NATS.Listen = "127.0.0.1:0" // others can join, so bookings are exchanged
	r := newRecorder()
	p, err := newParts(cfg, &simulated{}, r, r, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.bus.Close() })
	if _, err := events.NewRelay(events.RelayConfig{Worker: "w", URL: "http://127.0.0.1:1", Events: "tcp://127.0.0.1:1", Conn: p.bus.Local(), Registerer: r}); err != nil {
		t.Fatal(err)
	}
	all := r.metrics(t)
	if len(all) < 40 {
		t.Fatalf("only %d metrics are registered", len(all))
	}
	return all
}

// TestDeploy_MetricsExist: every metric that the dashboard and the Prometheus files name
// is one that the code registers.
func TestDeploy_MetricsExist(t *testing.T) {
	known := map[string]bool{}
	for _, m := range registered(t) {
		known[m.name] = true
	}
	files, _ := filepath.Glob("../../deploy/*/*")
	named := 0
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`warmroute_[a-z0-9_]+`).FindAllString(string(raw), -1) {
			named++
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !known[name] && !known[base] {
				t.Errorf("%s names %s, which the code does not register", f, name)
			}
		}
	}
	if named < 20 {
		t.Errorf("deploy/ names only %d metrics", named)
	}
}

// TestMetrics_Document: docs/metrics.md is what the code registers.
func TestMetrics_Document(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\nRead this to find what a number on the dashboard means. Generated from the code by\n`go test ./cmd/warmroute -run Metrics -update`; a test compares.\n\n| metric | labels | meaning |\n|---|---|---|\n")
	for _, m := range registered(t) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, m.labels, m.help)
	}
	compare(t, "../../docs/metrics.md", b.String())
}

// TestReadme_Flags: the flag table of the README is what serve takes.
func TestReadme_Flags(t *testing.T) {
	raw, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- flags: begin -->\n", "<!-- flags: end -->"
	head, rest, ok := strings.Cut(string(raw), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has no flag table")
	}
	compare(t, "../../README.md", head+begin+flagTable()+end+tail)
}

// compare fails when a file differs from want; with -update it writes it.
func compare(t *testing.T, path, want string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current: run make golden and review the diff", path)
	}
}
