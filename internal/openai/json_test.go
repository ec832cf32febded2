package openai

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestReader_AgreesWithEncodingJSON: what is valid there is valid here, and the other
// way round. NaN and Infinity, which Python writes, are the only exception.
func TestReader_AgreesWithEncodingJSON(t *testing.T) {
	f := func(text string) {
		t.Helper()
		var r Reader
		r.Reset([]byte(text), Span{0, len(text)})
		r.Skip()
		r.space()
		ok := r.Err() == nil && r.Pos() == len(text)
		if want := json.Valid([]byte(text)); ok != want {
			t.Errorf("%q: valid=%v (%v), want %v", text, ok, r.Err(), want)
		}
	}
	for _, s := range []string{
		``, ` `, `{}`, `[]`, `{ }`, `[ ]`, `null`, `true`, `false`, `nul`, `tru`, `falsy`, `"a"`, `"a`, `"\u12"`, `"\ud800"`, `"\x"`,
		"\"\t\"", `0`, `-0`, `01`, `1.`, `.5`, `1.5e`, `1.5e+3`, `-`, `+1`, `1e5`, `1E-5`, `123456789012345678901234567890`,
		`{"a":1}`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1 "b":2}`, `{"a":}`, `[1]]`, `{"a":[{"b":[]}]}`,
		` { "a" : [ 1 , 2 ] } `, `{"a":1}x`, `"\"\\\/\b\f\n\r\té"`, "\"\x7f\"", `[true,false,null]`, `{"":0}`, `{"a":1,"a":2}`, `-1`, `-x`,
	} {
		f(s)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var b strings.Builder
		randomValue(rng, &b, 4)
		text := b.String()
		f(text)
		i := rng.IntN(len(text))
		f(text[:i] + text[min(i+1+rng.IntN(3), len(text)):])
		f(text[:i] + string(`{}[]",:\0e-. `[rng.IntN(13)]) + text[i:])
	}
}

func TestReader_PythonNumbers(t *testing.T) {
	text := `{"a":NaN,"b":[Infinity,-Infinity]}`
	var r Reader
	r.Reset([]byte(text), Span{0, len(text)})
	if r.Skip(); r.Err() != nil {
		t.Fatal(r.Err())
	}
	for _, text := range []string{`-NaN`, `Nan`, `Inf`} {
		r.Reset([]byte(text), Span{0, len(text)})
		if r.Skip(); r.Err() == nil && r.Pos() == len(text) {
			t.Errorf("%s is valid", text)
		}
	}
}

func TestReader_Depth(t *testing.T) {
	f := func(depth int, ok bool) {
		t.Helper()
		text := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		var r Reader
		r.Reset([]byte(text), Span{0, len(text)})
		if r.Skip(); (r.Err() == nil) != ok {
			t.Errorf("depth %d: %v", depth, r.Err())
		}
	}
	f(maxDepth, true)
	f(maxDepth+1, false)
	f(1_000_000, false)
}

func TestReader_Int(t *testing.T) {
	f := func(text string, want int64, ok bool) {
		t.Helper()
		var r Reader
		r.Reset([]byte(text), Span{0, len(text)})
		if got, gotOK := r.Int(); got != want || gotOK != ok {
			t.Errorf("%s = %d %v, want %d %v", text, got, gotOK, want, ok)
		}
	}
	f("0", 0, true)
	f("7", 7, true)
	f("-7", -7, true)
	f("7.0", 7, true)
	f("2e3", 2000, true)
	f("7.5", 0, false)
	f("NaN", 0, false)
	f("123456789012345678901234567890", 1<<53, true)
	f("-Infinity", -1<<53, true)
	f("1e400", 1<<53, true)
	f("4294967295", 4294967295, true)
}

func TestUnescape_AgreesWithEncodingJSON(t *testing.T) {
	f := func(raw string) {
		t.Helper()
		var want string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if got := string(Unescape(nil, []byte(raw))); got != want {
			t.Errorf("%s = %q, want %q", raw, got, want)
		}
	}
	f(`plain`)
	f(`\"\\\/\b\f\n\r\t`)
	f(`h\u00e9llo \u20ac \ud83d\ude00 é`)
	f(`\u0000`)
	if a, b := Unescape(nil, []byte(`\ud800`)), Unescape(nil, []byte(`\ud801x`)); string(a) == string(b[:3]) {
		t.Error("two lone surrogates became one")
	}
}

func TestAppendString_IsReadBack(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		var got string
		b := AppendString(nil, s)
		if err := json.Unmarshal(b, &got); err != nil || got != want {
			t.Errorf("%q became %s (%v)", s, b, err)
		}
	}
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é€😀", "</script>\u2028"} {
		f(s, s)
	}
	f("a\xffb", "a\ufffdb")
}

// randomValue writes a random JSON value with odd spacing, escapes, big numbers and
// repeated keys.
func randomValue(rng *rand.Rand, b *strings.Builder, depth int) {
	space := func() {
		for rng.IntN(4) == 0 {
			b.WriteByte(" \n\t\r"[rng.IntN(4)])
		}
	}
	space()
	switch k := rng.IntN(8); {
	case k < 2 && depth > 0:
		b.WriteByte('{')
		for i := range rng.IntN(4) {
			if i > 0 {
				b.WriteByte(',')
			}
			space()
			b.WriteString([]string{`"k"`, `"\u006b"`, `"x y"`, `"temperature"`, `"é"`, `"\"q\""`}[rng.IntN(6)])
			space()
			b.WriteByte(':')
			randomValue(rng, b, depth-1)
		}
		space()
		b.WriteByte('}')
	case k < 4 && depth > 0:
		b.WriteByte('[')
		for i := range rng.IntN(4) {
			if i > 0 {
				b.WriteByte(',')
			}
			randomValue(rng, b, depth-1)
		}
		space()
		b.WriteByte(']')
	case k < 6:
		b.WriteString([]string{`""`, `"text"`, `"a\nb\t\"c\""`, `"\ud83d\ude00 \u00e9"`, `"é😀"`, `"data: [DONE]"`, `"{\"a\":[1]}"`}[rng.IntN(7)])
	case k < 7:
		b.WriteString([]string{"0", "-1", "3.14", "1e-7", "18446744073709551616", "123456789012345678901234567890", "0.10", "-0"}[rng.IntN(8)])
	default:
		b.WriteString([]string{"true", "false", "null"}[rng.IntN(3)])
	}
	space()
}
