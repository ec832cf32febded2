//go:build interop

package jinja

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// minCells is how many cells Python must have rendered for the check to mean anything.
const minCells = 1000

type cell struct {
	Template, Case string // of chat templates
	Source         string // of random templates
	Text, Error    *string
}

// TestInterop_EqualsPython compares with what interop/render.py wrote to the folder
// named by WARMROUTE_JINJA_CELLS: every text must be equal, and at least 95 % of the
// cells that Python refuses must be refused.
func TestInterop_EqualsPython(t *testing.T) {
	dir := os.Getenv("WARMROUTE_JINJA_CELLS")
	if dir == "" {
		t.Fatal("WARMROUTE_JINJA_CELLS is not set: run interop/run.sh")
	}
	var templates map[string]string
	var cases map[string]json.RawMessage
	readJSON(t, filepath.Join(dir, "templates.json"), &templates)
	readJSON(t, filepath.Join(dir, "cases.json"), &cases)
	equal, rendered, refused, errors := 0, 0, 0, 0
	for _, c := range readCells(t, filepath.Join(dir, "cells.jsonl")) {
		got, err := render(templates[c.Template], decodeVars(t, string(cases[c.Case])))
		switch {
		case c.Text == nil:
			errors++
			if err != nil {
				refused++
			} else {
				t.Logf("%s / %s: rendered, but Python says %s", c.Template, c.Case, *c.Error)
			}
		case err != nil:
			rendered++
			t.Errorf("%s / %s: %v", c.Template, c.Case, err)
		case got != *c.Text:
			rendered++
			t.Errorf("%s / %s: %s", c.Template, c.Case, difference(got, *c.Text))
		default:
			rendered++
			equal++
		}
	}
	t.Logf("equal %d of %d cells that Python renders; error in %d of %d that it refuses", equal, rendered, refused, errors)
	if rendered < minCells {
		t.Errorf("Python rendered %d cells, want at least %d", rendered, minCells)
	}
	if 100*refused < 95*errors {
		t.Errorf("%d of %d cells that Python refuses are errors, want 95 %%", refused, errors)
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func readCells(t *testing.T, path string) (cells []cell) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		var c cell
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cells = append(cells, c)
	}
	return cells
}

// TestInterop_RandomTemplates compares with what interop/random_templates.py wrote.
func TestInterop_RandomTemplates(t *testing.T) {
	vars := decodeVars(t, readFile(t, "testdata/vars.json"))
	equal, rendered, refused, errors, unsupported := 0, 0, 0, 0, 0
	for _, c := range readCells(t, filepath.Join(os.Getenv("WARMROUTE_JINJA_CELLS"), "random.jsonl")) {
		got, err := render(c.Source, vars)
		switch {
		case c.Text == nil:
			errors++
			if err != nil {
				refused++
			} else {
				t.Logf("rendered, but Python says %s: %s", *c.Error, c.Source)
			}
			continue
		case err != nil && strings.Contains(err.Error(), "not supported: "):
			unsupported++
			continue
		case err != nil:
			t.Errorf("%v: %s", err, c.Source)
		case got != *c.Text:
			t.Errorf("%s: %s", difference(got, *c.Text), c.Source)
		default:
			equal++
		}
		rendered++
	}
	t.Logf("equal %d of %d random templates that Python renders; error in %d of %d that it refuses; %d use what is not supported", equal, rendered, refused, errors, unsupported)
	if rendered < minCells || 100*unsupported > rendered || 100*refused < 95*errors {
		t.Errorf("too few templates or errors")
	}
}
