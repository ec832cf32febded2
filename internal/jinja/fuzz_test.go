package jinja

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func addSeeds(f *testing.F, add func(source string)) {
	for _, c := range constructs(f) {
		add(c.source)
	}
	paths, err := filepath.Glob("testdata/chat/*.jinja")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no chat templates: %v", err)
	}
	for _, path := range paths {
		add(readFile(f, path))
	}
}

// checkError wants err to be nil or an *Error that is no fault of the package.
func checkError(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if err != nil && (!errors.As(err, &e) || strings.HasPrefix(e.Message, "BUG") || e.Line < 1) {
		t.Fatalf("%#v", err)
	}
}

// FuzzParse looks for sources that are not refused with an *Error and not parsed.
func FuzzParse(f *testing.F) {
	addSeeds(f, func(source string) { f.Add(source) })
	f.Fuzz(func(t *testing.T, source string) {
		_, err := Parse(source)
		checkError(t, err)
	})
}

// FuzzRender looks for templates and data that break a Render, or that render
// differently a second time.
func FuzzRender(f *testing.F) {
	vars := readFile(f, "testdata/vars.json")
	addSeeds(f, func(source string) { f.Add(source, "data", int64(7), 1.5) })
	f.Fuzz(func(t *testing.T, source, text string, n int64, x float64) {
		tmpl, err := Parse(source)
		if err != nil {
			checkError(t, err)
			return
		}
		v := decodeVars(t, vars)
		v.Set("name", String(text))
		v.Set("one", Int(n))
		v.Set("pi", Float(x))
		message := NewDict(2)
		message.Set("role", String("user"))
		message.Set("content", String(text))
		v.Set("messages", List([]Value{message.Value(), String(text), Int(n)}))
		env := &Env{Now: fixedNow, MaxSteps: 50_000, MaxOutput: 1 << 20}
		first, err := tmpl.Render([]byte("dst"), v, env)
		checkError(t, err)
		if !bytes.HasPrefix(first, []byte("dst")) {
			t.Fatalf("dst is lost: %q", first)
		}
		second, again := tmpl.Render([]byte("dst"), v, env)
		if !bytes.Equal(first, second) || (err == nil) != (again == nil) {
			t.Fatalf("%q %v, then %q %v", first, err, second, again)
		}
	})
}
