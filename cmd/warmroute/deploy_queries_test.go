package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// query is one PromQL expression of deploy/ and what is shown of its result.
type query struct{ where, expr, shown string }

// queries returns those of the dashboard and of the alert rules.
func queries(t *testing.T) (list []query) {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/grafana/warmroute.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID                       int
			Title, Type, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(raw, &board); err != nil {
		t.Fatal(err)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("panel %s: the id %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %s lies on %q or outside", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("panel %s has no description or no query", p.Title)
		}
		for _, q := range p.Targets {
			list = append(list, query{"panel " + p.Title, q.Expr, q.LegendFormat})
		}
	}
	for _, d := range documents(t)["../../deploy/prometheus/alerts.yml"] {
		groups, _ := d.(map[string]any)["groups"].([]any)
		for _, g := range groups {
			rules, _ := g.(map[string]any)["rules"].([]any)
			for _, r := range rules {
				rule, _ := r.(map[string]any)
				name, _ := rule["alert"].(string)
				labels, _ := rule["labels"].(map[string]any)
				notes, _ := rule["annotations"].(map[string]any)
				text := ""
				for _, key := range []string{"summary", "description", "runbook"} {
					s, _ := notes[key].(string)
					if s == "" {
						t.Errorf("alert %s has no %s", name, key)
					}
					text += s + "\n"
				}
				if s := labels["severity"]; name == "" || s != "page" && s != "ticket" {
					t.Errorf("alert %q has the severity %v", name, s)
				}
				expr, _ := rule["expr"].(string)
				list = append(list, query{"alert " + name, expr, text})
			}
		}
	}
	return list
}

var (
	selector    = regexp.MustCompile(`\b(warmroute_[a-z0-9_]+)(?:\{([^}]*)\})?(\[[^\]]*\])?`)
	matcher     = regexp.MustCompile(`^\s*([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"\s*$`)
	grouping    = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	placeholder = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}`)
	counterFunc = regexp.MustCompile(`\b(?:rate|increase|irate)\((warmroute_[a-z0-9_]+)`)
)

// TestDeploy_QueriesFit: each query of the dashboard and of the alerts names metrics that
// exist, labels that they have, and values that their help lists; it counts what is counted;
// and what is shown of a result is a label that it has.
func TestDeploy_QueriesFit(t *testing.T) {
	known := map[string]metric{}
	for _, m := range registered(t) {
		known[m.name] = m
	}
	list := queries(t)
	if len(list) < 80 {
		t.Errorf("only %d queries", len(list))
	}
	for _, q := range list {
		for _, fault := range faults(q, known) {
			t.Errorf("%s: %s: %s", q.where, q.expr, fault)
		}
	}
	// The test finds what it is for.
	for expr, want := range map[string]string{
		`sum(warmroute_nosuch)`: "does not exist", `sum by (status) (rate(warmroute_proxy_requests_total[5m]))`: "no label status",
		`sum(rate(warmroute_proxy_requests_total{status="x"}[5m]))`: "no label status", `sum(rate(warmroute_router_refusals_total{reason="full"}[5m]))`: "no value",
		`sum(rate(warmroute_queue_depth[5m]))`: "no counter", `sum(warmroute_queue_depth`: "parentheses", `sum(rate(warmroute_proxy_requests_total))`: "no range",
		`histogram_quantile(0.5, warmroute_queue_depth)`: "le",
	} {
		if got := strings.Join(faults(query{"", expr, ""}, known), "; "); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %s", expr, got, want)
		}
	}
}

// faults lists what is wrong with a query.
func faults(q query, known map[string]metric) (list []string) {
	if strings.Count(q.expr, "(") != strings.Count(q.expr, ")") {
		list = append(list, "its parentheses do not match")
	}
	all := []string{"instance", "job"} // of every scraped series
	found := selector.FindAllStringSubmatch(q.expr, -1)
	if len(found) == 0 {
		list = append(list, "it names no metric")
	}
	for _, s := range found {
		m, ok := known[s[1]]
		if !ok {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, cut := strings.CutSuffix(s[1], suffix); cut && !ok {
					m, ok = known[base]
				}
			}
		}
		if !ok {
			list = append(list, s[1]+" does not exist")
			continue
		}
		labels := []string{"instance", "job"}
		if m.labels != "" {
			labels = append(labels, strings.Split(m.labels, ", ")...)
		}
		if strings.HasSuffix(s[1], "_bucket") {
			labels = append(labels, "le")
		}
		all = append(all, labels...)
		if s[2] == "" {
			continue
		}
		for pair := range strings.SplitSeq(s[2], ",") {
			switch p := matcher.FindStringSubmatch(pair); {
			case p == nil:
				list = append(list, "unreadable matcher "+pair)
			case !slices.Contains(labels, p[1]):
				list = append(list, s[1]+" has no label "+p[1])
			case !regexp.MustCompile(`\b` + regexp.QuoteMeta(p[2]) + `\b`).MatchString(m.help):
				list = append(list, "the help of "+s[1]+" lists no value "+p[2])
			}
		}
	}
	kept := []string{}
	for _, g := range grouping.FindAllStringSubmatch(q.expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(all, label) {
				list = append(list, "no label "+label+" is there to group by")
			}
			kept = append(kept, label)
		}
	}
	for _, p := range placeholder.FindAllStringSubmatch(q.shown, -1) {
		if !slices.Contains(kept, p[1]) {
			list = append(list, "its result has no label "+p[1])
		}
	}
	for _, c := range counterFunc.FindAllStringSubmatchIndex(q.expr, -1) {
		name, rest := q.expr[c[2]:c[3]], q.expr[c[3]:]
		if !regexp.MustCompile(`_(total|bucket|sum|count)$`).MatchString(name) {
			list = append(list, name+" is no counter")
		}
		if !regexp.MustCompile(`^(\{[^}]*\})?\[[^\]]+\]`).MatchString(rest) {
			list = append(list, name+" has no range")
		}
	}
	if strings.Contains(q.expr, "histogram_quantile") && !slices.Contains(kept, "le") {
		list = append(list, "a quantile needs le")
	}
	return list
}
