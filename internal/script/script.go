// Package script reads golden scripts: text files in which a test's input stands
// beside the output it must give. It answers the question "what did this code say,
// and is that what a reviewer agreed to?".
//
//	testdata/route/ties ──Run──▶ one Cmd at a time ──▶ the test's func ──▶ output
//	        ▲                                                              │
//	        └────────────── -update rewrites ◀── differs? fails ◀──────────┘
//
// A script is a sequence of cases, each a command line, optional input lines, a line
// of four dashes and the expected output up to a blank line. Lines that start with #
// between cases are comments and are kept:
//
//	# Four more conversations make w1 dear.
//	route prompt=system/3+turn1/1 times=5
//	----
//	w1 w1 w1 w1 w2
//
// Output that itself holds blank lines is fenced by a second line of four dashes at
// both ends. Run the tests with -update to rewrite the expected outputs, then review
// the diff like code.
package script

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected output of golden scripts")

// Cmd is one case of a script.
type Cmd struct {
	Name  string            // first word of the command line
	Args  []string          // the other words without "="
	Vals  map[string]string // the words of the form key=value
	Input string            // the lines between the command line and the dashes
	Pos   string            // file:line, for messages
}

// Int returns the value of key as an int, or def where it is absent. It panics on a
// value that is no number: the script is wrong.
func (c *Cmd) Int(key string, def int) int {
	v, ok := c.Vals[key]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		panic(fmt.Sprintf("%s: %s=%s is not an int", c.Pos, key, v))
	}
	return n
}

// Float returns the value of key as a float64, or def where it is absent.
func (c *Cmd) Float(key string, def float64) float64 {
	v, ok := c.Vals[key]
	if !ok {
		return def
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil {
		panic(fmt.Sprintf("%s: %s=%s is not a number", c.Pos, key, v))
	}
	return n
}

// String returns the value of key, or def where it is absent.
func (c *Cmd) String(key, def string) string {
	if v, ok := c.Vals[key]; ok {
		return v
	}
	return def
}

// RunDir runs every file of dir as a subtest; fresh makes the func of one file, so
// that files share no state.
func RunDir(t *testing.T, dir string, fresh func(t *testing.T) func(*Cmd) string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s (%v)", dir, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) { Run(t, f, fresh(t)) })
	}
}

// Run runs the cases of one script in order and compares each output with the
// expected one.
func Run(t *testing.T, path string, run func(*Cmd) string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		if line == "" || strings.HasPrefix(line, "#") {
			out.WriteString(line + "\n")
			i++
			continue
		}
		cmd := parse(line, fmt.Sprintf("%s:%d", path, i+1))
		out.WriteString(line + "\n")
		start := i + 1
		for i = start; i < len(lines) && lines[i] != "----"; i++ {
			out.WriteString(lines[i] + "\n")
		}
		if i == len(lines) {
			t.Fatalf("%s: no ---- after the command", cmd.Pos)
		}
		cmd.Input = strings.Join(lines[start:i], "\n")
		var want string
		want, i = expected(lines, i+1)
		got := strings.TrimRight(run(cmd), "\n")
		if got != want && !*update {
			t.Errorf("%s: %s\n--- got:\n%s\n--- want:\n%s", cmd.Pos, line, got, want)
		}
		out.WriteString("----\n" + fence(got))
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// expected reads the output that starts at lines[i] and returns it with the index of
// the line after it.
func expected(lines []string, i int) (string, int) {
	start := i
	if i < len(lines) && lines[i] == "----" {
		for i = start + 1; i < len(lines) && lines[i] != "----"; i++ {
		}
		return strings.Join(lines[start+1:i], "\n"), i + 1
	}
	for i < len(lines) && lines[i] != "" {
		i++
	}
	return strings.Join(lines[start:i], "\n"), i
}

func fence(s string) string {
	if strings.Contains(s, "\n\n") || strings.HasPrefix(s, "\n") {
		return "----\n" + s + "\n----\n"
	}
	if s == "" {
		return ""
	}
	return s + "\n"
}

func parse(line, pos string) *Cmd {
	words := strings.Fields(line)
	c := &Cmd{Name: words[0], Vals: map[string]string{}, Pos: pos}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			c.Vals[k] = v
		} else {
			c.Args = append(c.Args, w)
		}
	}
	return c
}
