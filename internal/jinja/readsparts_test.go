package jinja

import "testing"

func TestReadsParts(t *testing.T) {
	f := func(want bool, source string) {
		t.Helper()
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if tmpl.ReadsParts() != want {
			t.Errorf("%s: %v", source, !want)
		}
	}
	f(false, `{% for m in messages %}{{ m.content }}{% endfor %}`)
	f(true, `{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}`)
	f(true, `{% for m in messages %}{% if m['content'] is not string %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endif %}{% endfor %}`)
	f(true, `{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% for c in m['content'] | list %}{{ c }}{% endfor %}{% endfor %}`)
	f(true, `{% macro show(x) %}{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}{% endmacro %}`)
	f(false, `{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}`)
	f(false, `{% for m in others %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}`)
	f(false, `{% set a, b = messages %}{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}`)
	f(false, `{% set a = a %}{% set a = messages %}{% set messages = a %}`)
}
