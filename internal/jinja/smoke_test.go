package jinja

import "testing"

func TestRender_Smoke(t *testing.T) {
	got, err := render("{% for m in messages %}{{ m.role ~ ': ' + m.content }}\n{% endfor %}", decodeVars(t, `{"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil || got != "user: hi\n" {
		t.Fatalf("%q %v", got, err)
	}
}
