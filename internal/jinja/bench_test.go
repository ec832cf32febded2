package jinja

import (
	"encoding/json"
	"testing"
)

// fifty returns the variables of the 50-message conversation of the goldens.
func fifty(t testing.TB) string {
	var cases map[string]json.RawMessage
	if err := json.Unmarshal([]byte(readFile(t, "testdata/chat/cases.json")), &cases); err != nil {
		t.Fatal(err)
	}
	return string(cases["fifty"])
}

// BenchmarkRender50 renders 51 messages with a template that forgets old reasoning.
// testdata/speed.py times the same with Python.
func BenchmarkRender50(b *testing.B) {
	for _, name := range []string{"chatml", "headers", "alternate", "turns", "channels"} {
		b.Run(name, func(b *testing.B) {
			tmpl, err := Parse(readFile(b, "testdata/chat/"+name+".jinja"))
			if err != nil {
				b.Fatal(err)
			}
			vars := decodeVars(b, fifty(b))
			env := &Env{Now: fixedNow}
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if buf, err = tmpl.Render(buf[:0], vars, env); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}

// BenchmarkBuild50 builds the values of the conversation, as each request must.
func BenchmarkBuild50(b *testing.B) {
	messages := decodeVars(b, fifty(b)).entries[0].val.items()
	b.ReportAllocs()
	for b.Loop() {
		list := make([]Value, 0, len(messages))
		for _, m := range messages {
			d := NewDict(2)
			for _, e := range m.dict().entries {
				d.Set(e.key.str(), e.val)
			}
			list = append(list, d.Value())
		}
		vars := NewDict(2)
		vars.Set("messages", List(list))
	}
}

func BenchmarkParse(b *testing.B) {
	source := readFile(b, "testdata/chat/channels.jinja")
	b.SetBytes(int64(len(source)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(source); err != nil {
			b.Fatal(err)
		}
	}
}
