package jinja

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// construct is an entry of testdata/constructs.txt.
type construct struct {
	line   int
	source string
	result string // "= JSON string" or "! exception"
}

func constructs(t testing.TB) (all []construct) {
	t.Helper()
	var entry []string
	for i, line := range strings.Split(readFile(t, "testdata/constructs.txt"), "\n") {
		switch {
		case len(entry) == 0 && (line == "" || strings.HasPrefix(line, "# ")):
		case strings.HasPrefix(line, "= ") || strings.HasPrefix(line, "! "):
			all = append(all, construct{i + 1, strings.Join(entry, "\n"), line})
			entry = nil
		default:
			entry = append(entry, line)
		}
	}
	return all
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestConstructs_EqualPython compares every construct with what Python rendered.
func TestConstructs_EqualPython(t *testing.T) {
	vars := decodeVars(t, readFile(t, "testdata/vars.json"))
	for _, c := range constructs(t) {
		got, err := render(c.source, vars)
		if strings.HasPrefix(c.result, "! ") {
			if err == nil {
				t.Errorf("line %d: %s\n got %q, Python raises %s", c.line, c.source, got, c.result[2:])
			}
			continue
		}
		var want string
		if err := json.Unmarshal([]byte(c.result[2:]), &want); err != nil {
			t.Fatalf("line %d: %v", c.line, err)
		}
		switch {
		case err != nil:
			t.Errorf("line %d: %s\n %v, want %q", c.line, c.source, err, want)
		case got != want:
			t.Errorf("line %d: %s\n%s", c.line, c.source, difference(got, want))
		}
	}
}

// TestChat_EqualPython compares the hashes of whole prompts. To see a difference, render
// the template with testdata/golden.py.
func TestChat_EqualPython(t *testing.T) {
	var cases map[string]json.RawMessage
	if err := json.Unmarshal([]byte(readFile(t, "testdata/chat/cases.json")), &cases); err != nil {
		t.Fatal(err)
	}
	cells := strings.Split(strings.TrimSpace(readFile(t, "testdata/chat/cells.txt")), "\n")
	if len(cells) < 300 {
		t.Fatalf("only %d cells", len(cells))
	}
	for _, line := range cells {
		f := strings.Fields(line)
		got, err := render(readFile(t, "testdata/chat/"+f[0]+".jinja"), decodeVars(t, string(cases[f[1]])))
		sum := sha256.Sum256([]byte(got))
		digest := hex.EncodeToString(sum[:8])
		if err != nil {
			digest = "error"
		}
		if digest != f[2] {
			t.Errorf("%s / %s: %s, want %s (%v)\n%s", f[0], f[1], digest, f[2], err, got)
		}
	}
}
