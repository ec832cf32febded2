package jinja

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func TestValue_IsThreeWords(t *testing.T) {
	if n := unsafe.Sizeof(Value{}); n != 24 {
		t.Errorf("a Value takes %d bytes, want 24", n)
	}
}

func TestNumber_ReadsAsPython(t *testing.T) {
	st := &state{}
	f := func(raw, want string) {
		t.Helper()
		v, err := Number(raw)
		got := string(st.appendStr(nil, v))
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("Number(%.20q) = %.40s, want %.40s", raw, got, want)
		}
	}
	f("0", "0")
	f("-0", "0")
	f("-0.0", "-0.0")
	f("1.0", "1.0")
	f("1e22", "1e+22")
	f("1E+2", "100.0")
	f("1e999", "inf")
	f("9223372036854775807", "9223372036854775807")
	f("9223372036854775808", "9223372036854775808")
	f("-9223372036854775809", "-9223372036854775809")
	f(strings.Repeat("9", 4300), strings.Repeat("9", 4300))
	f(strings.Repeat("9", 4301), "error")
	for _, raw := range []string{"", "-", "x", "NaN", "Infinity", "0x10", "1_000", "+1", " 1", "1 ", "1.5p3", "--1", "1e"} {
		f(raw, "error")
	}
}

// TestDict_KeepsOrder compares with a map and a list of keys, around the size from which
// a Dict keeps an index.
func TestDict_KeepsOrder(t *testing.T) {
	for _, n := range []int{0, 1, indexFrom - 1, indexFrom, indexFrom + 1, 200} {
		d := NewDict(0)
		for round := range 2 {
			for i := range n {
				d.Set(fmt.Sprint("k", i), Int(int64(i+round)))
			}
		}
		if d.Len() != n {
			t.Fatalf("%d keys, want %d", d.Len(), n)
		}
		for i := range n {
			v, ok := d.Get(fmt.Sprint("k", i))
			if !ok || v.n != int64(i+1) || d.entries[i].key.str() != fmt.Sprint("k", i) {
				t.Errorf("n=%d key %d: %v %v", n, i, v.n, ok)
			}
		}
		if _, ok := d.Get("other"); ok {
			t.Errorf("n=%d: found a key that was never set", n)
		}
	}
}

func TestDict_KeysOfAllTypes(t *testing.T) {
	for _, fill := range []int{0, indexFrom} {
		d := NewDict(0)
		for i := range fill {
			d.Set(fmt.Sprint(i), None())
		}
		big, _ := Number("18446744073709551616")
		keys := []Value{Int(1), None(), Float(1.5), Float(18446744073709551616), tuple([]Value{Int(1), String("a")}), String("1x"), undefined("u")}
		for i, k := range keys {
			d.setValue(k, Int(int64(i)))
		}
		for k, want := range map[Value]int64{Bool(true): 0, Float(1): 0, big: 3, keys[4]: 4, {}: 6} {
			if i := d.findValue(k); i < 0 || d.entries[i].val.n != want {
				t.Errorf("fill %d: key of type %s at %d, want value %d", fill, k.typeName(), i, want)
			}
		}
		if d.Len() != fill+len(keys) {
			t.Errorf("%d keys, want %d", d.Len(), fill+len(keys))
		}
	}
}

func TestError_TellsWhereAndWhy(t *testing.T) {
	vars := NewDict(1)
	vars.Set("secret", String("s3cret"))
	f := func(source string, want Error) {
		t.Helper()
		_, err := render(source, vars)
		var e *Error
		if !errors.As(err, &e) || *e != want {
			t.Errorf("%s: got %+v, want %+v", source, err, want)
		}
	}
	f("a\nb\n{{ x.y }}", Error{Line: 3, Message: "'x' is undefined"})
	f("{{ secret.a.b }}", Error{Line: 1, Message: "'a' is undefined"})
	f("{{ {}[secret].b }}", Error{Line: 1, Message: "value is undefined"})
	f("{{ secret + 1 }}", Error{Line: 1, Message: `can only concatenate str (not "int") to str`})
	f("{% macro m() %}{% endmacro %}\n{{ m(**{secret: 1}) }}", Error{Line: 2, Message: "macro 'm' takes no keyword argument of that name"})
	f("{% if 1 %}\n{{ raise_exception('no ' ~ 1) }}{% endif %}", Error{Line: 2, Message: "no 1", Raised: true})
	f("\n\n{% if 1 %}", Error{Line: 3, Message: "unexpected end of template, expected 'endif'"})
	f("\n{% include 'x' %}", Error{Line: 2, Message: "tag 'include' is not supported"})
	f("{{ x|urlize }}", Error{Line: 1, Message: "filter 'urlize' is not supported"})
	f("{{ x|nosuch }}", Error{Line: 1, Message: "no filter named 'nosuch'"})
	f("{{ self }}", Error{Line: 1, Message: "self is not supported"})
	f("{{ [].append(1) }}", Error{Line: 1, Message: "access to attribute 'append' is unsafe"})
	f("{% macro m() %}\n{{ 1/0 }}\n{% endmacro %}\n\n{{ m() }}", Error{Line: 2, Message: "division by zero"})
}

func TestRender_AppendsAndKeepsVars(t *testing.T) {
	tmpl, err := Parse("{% set list = list + [4] %}{{ list }}{% set name = 'x' %}")
	if err != nil {
		t.Fatal(err)
	}
	vars := decodeVars(t, `{"list": [1, 2], "name": "n"}`)
	before := string((&state{maxOut: 1 << 20}).appendStr(nil, vars.Value()))
	out, err := tmpl.Render([]byte("dst:"), vars, nil)
	if err != nil || string(out) != "dst:[1, 2, 4]" {
		t.Errorf("got %q %v", out, err)
	}
	if after := string((&state{maxOut: 1 << 20}).appendStr(nil, vars.Value())); after != before {
		t.Errorf("variables became %s", after)
	}
}

// TestRender_Concurrent renders one template with many sets of variables at once; each
// must see its own.
func TestRender_Concurrent(t *testing.T) {
	tmpl, err := Parse("{% macro m(x) %}{{ x ~ who }}{% endmacro %}{% for i in range(50) %}{% set y = who + i|string %}{{ m(y) }}{{ loop.index }} {% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			who := strings.Repeat(fmt.Sprint(i), i+1)
			vars := NewDict(1)
			vars.Set("who", String(who))
			var want strings.Builder
			for j := range 50 {
				fmt.Fprintf(&want, "%s%d%s%d ", who, j, who, j+1)
			}
			for range 200 {
				if out, err := tmpl.Render(nil, vars, nil); err != nil || string(out) != want.String() {
					t.Errorf("got %q %v", out, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestRender_Allocations guards what makes a Render cheap: no allocation per message.
func TestRender_Allocations(t *testing.T) {
	tmpl, err := Parse(readFile(t, "testdata/chat/chatml.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	vars, env := decodeVars(t, fifty(t)), &Env{Now: fixedNow}
	var buf []byte
	n := testing.AllocsPerRun(100, func() {
		if buf, err = tmpl.Render(buf[:0], vars, env); err != nil {
			t.Fatal(err)
		}
	})
	if n > 12 {
		t.Errorf("%v allocations for 51 messages, want at most 12", n)
	}
}
