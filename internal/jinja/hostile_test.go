package jinja

import (
	"errors"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// patience is how long any hostile template may run before it is refused.
const patience = 10 * time.Second

// refuse renders and wants an *Error in time; it returns it.
func refuse(t *testing.T, name, source string, vars *Dict) *Error {
	t.Helper()
	start := time.Now()
	_, err := render(source, vars)
	if took := time.Since(start); took > patience {
		t.Errorf("%s: took %v", name, took)
	} else if took > time.Second {
		t.Logf("%s: %v", name, took)
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v, want a jinja.Error", name, err)
		return &Error{}
	}
	if strings.HasPrefix(e.Message, "BUG") {
		t.Errorf("%s: %v", name, e)
	}
	return e
}

func TestRender_RefusesRunawayTemplates(t *testing.T) {
	for name, source := range map[string]string{
		"macro calls itself":       "{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}",
		"macro in filter":          "{% macro r(x) %}{% filter upper %}{{ r(x ~ 'a') }}{% endfilter %}{% endmacro %}{{ r('') }}",
		"macros call each other":   "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
		"macro tree":               "{% macro r(n) %}{% if n %}{{ r(n - 1) }}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(60) }}",
		"caller recursion":         "{% macro r() %}{% call r() %}{{ caller() }}{% endcall %}{% endmacro %}{{ r() }}",
		"recursive loop":           "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
		"recursion in expressions": "{% macro s() %}{{ " + strings.Repeat("(1 + ", 90) + "s()|length" + strings.Repeat(")", 90) + " }}{% endmacro %}{{ s() }}",
		"a million rounds":         "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
		"nested loops":             "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}x{% endfor %}{% endfor %}{% endfor %}",
		"rounds of long bodies":    "{% for i in range(100000) %}{% if [" + strings.Repeat("1,", 50000) + "] %}{% endif %}{% endfor %}",
		"huge range":               "{% for i in range(10 ** 9) %}{% endfor %}",
		"range of ranges":          "{{ range(100000)|map('string')|map('list')|map('join')|list|length }}{% for i in range(99) %}{{ range(100000)|sum }}{% endfor %}",
		"long output":              "{% set a = 'x' * 10000000 %}{% for i in range(100) %}{{ a }}{% endfor %}",
		"long text":                "{% for i in range(100000) %}" + strings.Repeat("x", 100000) + "{% endfor %}",
		"long sum":                 "{% set a = 'x' * 30000000 %}{{ " + strings.Repeat("a + ", 5000) + "a }}",
		"long concat":              "{% set a = 'x' * 30000000 %}{{ (" + strings.Repeat("a ~ ", 5000) + "a)|length }}",
		"doubling":                 "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"doubling lists":           "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"doubling structures":      "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"repeated text":            "{{ 'a' * 10 ** 9 }}",
		"repeated list":            "{{ [0] * 10 ** 9 }}",
		"repeated by a big int":    "{{ 'a' * 10 ** 30 }}",
		"power":                    "{{ 10 ** 10 ** 10 }}{{ 10 ** (10 ** 10) }}",
		"growing int":              "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
		"indent":                   "{{ [[1]]|tojson(indent=10 ** 9) }}",
		"indented lines":           "{{ ('a\n' * 100000)|indent(100000) }}",
		"replace":                  "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
		"join":                     "{{ range(100000)|join('x' * 100000) }}",
		"width of %":               "{{ '%999999999d' % 1 }}",
		"star width of %":          "{{ '%*d' % (10 ** 9, 1) }}",
		"precision of %":           "{{ '%.999999999f' % 1.5 }}",
		"width of format":          "{{ '{:999999999}'.format(1) }}",
		"center":                   "{{ 'a'.center(10 ** 9) }}",
		"ljust of wide":            "{{ 'a'.ljust(30000000, '🎉') }}",
		"zfill":                    "{{ '1'.zfill(10 ** 12) }}",
		"expandtabs":               "{{ '\\t'.expandtabs(10 ** 9) }}",
		"batch":                    "{{ [1]|batch(10 ** 9, 'x')|list }}",
		"slices":                   "{{ [1]|slice(10 ** 9)|list|length }}",
		"time format":              "{{ strftime_now('%c' * 1000000) }}",
		"deep value":               "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
		"deep JSON":                "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x|tojson }}",
		"deep equality":            "{% set ns = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
		"wide equality":            "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
		"wide equality of dicts":   "{% set ns = namespace(x=1, y=1) %}{% for i in range(64) %}{% set ns.x = {1: ns.x, 2: ns.x} %}{% set ns.y = {1: ns.y, 2: ns.y} %}{% endfor %}{{ ns.x == ns.y }}",
		"wide order":               "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x < ns.y }}",
		"wide hash":                "{% set ns = namespace(x=()) %}{% for i in range(64) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
		"wide key":                 "{% set ns = namespace(x=()) %}{% for i in range(64) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {1: 1}[ns.x] }}",
		"long keys":                "{% set a = 'x' * 10000000 %}{% for i in range(100000) %}{% set x = {(a, 1): 1} %}{% endfor %}",
		"long keys of a dict":      "{% set a = {('x' * 10000000, 1): 1} %}{% for i in range(100000) %}{% set x = a[(1, 1)] %}{% set y = dict(a) %}{% endfor %}",
		"deep order":               "{% set ns = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x < ns.y }}",
		"deep hash":                "{% set ns = namespace(x=()) %}{% for i in range(5000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
		"namespace in itself":      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
		"namespace in a list":      "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
		"comparing long texts":     "{% set a = 'x' * 10000000 %}{% set b = 'x' * 10000000 %}{% for i in range(100000) %}{% if a == b %}{% endif %}{% endfor %}",
		"searching long texts":     "{% set a = 'x' * 10000000 %}{% for i in range(100000) %}{% if 'y' in a %}{% endif %}{% endfor %}",
		"stripping long texts":     "{% set a = ' ' * 10000000 %}{% for i in range(100000) %}{% if a.strip() %}{% endif %}{% endfor %}",
		"stripping of long sets":   "{% set a = 'x' * 1000000 %}{% set b = 'y' * 1000000 ~ 'x' %}{% for i in range(100000) %}{% if a.strip(b) %}{% endif %}{% endfor %}",
		"searching long lists":     "{% set a = range(100000)|list %}{% for i in a %}{% if -1 in a %}{% endif %}{% endfor %}",
		"lengths of long texts":    "{% set a = 'x' * 10000000 %}{% for i in range(100000) %}{% if a|length == a[9999999]|length %}{% endif %}{% endfor %}",
		"splitting long texts":     "{{ ('a,' * 10000000).split(',')|length }}",
		"sorting":                  "{% for i in range(1000) %}{% set x = range(10000)|sort(reverse=true) %}{% endfor %}",
		"long attribute paths":     "{{ ([{'a': 1}] * 100000)|map(attribute='a' ~ '.a' * 100000, default={})|list }}",
		"many attribute paths":     "{% set a = 'a.' * 1000000 %}{% for i in range(100000) %}{% set x = []|groupby(a) %}{% endfor %}",
		"long attribute":           "{{ ([1] * 100000)|map(attribute='a' * 10000000, default=1)|list }}",
		"long method":              "{% set a = 'a' * 10000000 %}{% for i in range(100000) %}{% set x = 'a'[a] %}{% endfor %}",
		"many sort keys":           "{{ ([{}] * 1000)|sort(attribute=',' * 100000) }}",
		"many keywords":            "{% macro m() %}{{ kwargs|length }}{% endmacro %}{% set d = dict(range(100000)|map('string')|batch(2)) %}{% for i in range(1000) %}{% set x = m(**d) %}{% endfor %}",
		"lists of lists":           "{% set ns = namespace(l=none) %}{% for i in range(100000) %}{% for j in range(9) %}{% set ns.l = [ns.l, [0] * 64] %}{% endfor %}{% endfor %}",
	} {
		if e := refuse(t, name, source, nil); !e.Limit {
			t.Errorf("%s: %v, want a limit", name, e)
		}
	}
}

func TestParse_RefusesDeepAndLongSources(t *testing.T) {
	const deep = 100_000
	rep := strings.Repeat
	for name, source := range map[string]string{
		"parentheses":      "{{ " + rep("(", deep) + "1" + rep(")", deep) + " }}",
		"lists":            "{{ " + rep("[", deep) + rep("]", deep) + " }}",
		"dicts":            "{{ " + rep("{1:", deep) + "1" + rep("}", deep) + " }}",
		"open brackets":    "{{ " + rep("[", deep),
		"subscripts":       "{{ " + rep("a[", deep) + "1" + rep("]", deep) + " }}",
		"calls":            "{{ " + rep("a(", deep) + rep(")", deep) + " }}",
		"attributes":       "{{ a" + rep(".a", deep) + " }}",
		"call chain":       "{{ a" + rep("()", deep) + " }}",
		"filters":          "{{ a" + rep("|e", deep) + " }}",
		"filter arguments": "{{ " + rep("a|d(", deep) + "1" + rep(")", deep) + " }}",
		"not":              "{{ " + rep("not ", deep) + "1 }}",
		"minus":            "{{ " + rep("- ", deep) + "1 }}",
		"inline ifs":       "{{ " + rep("1 if 1 else ", deep) + "1 }}",
		"inline if chain":  "{{ 1" + rep(" if 1", deep) + " }}",
		"or":               "{{ 1" + rep(" or 1", deep) + " }}",
		"and":              "{{ 1" + rep(" and 1", deep) + " }}",
		"minus chain":      "{{ 1" + rep(" - 1", deep) + " }}",
		"power chain":      "{{ 1" + rep(" ** 1", deep) + " }}",
		"tests":            "{{ 1" + rep(" is odd", deep) + " }}",
		"strings":          "{{ " + rep("'a' ", deep) + " }}",
		"ifs":              rep("{% if 1 %}", deep),
		"closed ifs":       rep("{% if 1 %}", 40_000) + rep("{% endif %}", 40_000),
		"fors":             rep("{% for a in b %}", 60_000),
		"closed fors":      rep("{% for a in b %}", 50) + rep("{% endfor %}", 50),
		"macros":           rep("{% macro a() %}", 60_000),
		"sets":             rep("{% set a %}", deep),
		"withs":            rep("{% with %}", deep),
		"generations":      rep("{% generation %}", 60_000),
		"target":           "{% for " + rep("(", deep) + "a" + rep(")", deep) + " in b %}{% endfor %}",
		"parameters":       "{% macro m(" + rep("aaaa,", deep) + ") %}{% endmacro %}",
		"keywords":         "{{ m(" + rep("aaaa=1,", deep) + ") }}",
		"comment opens":    rep("{#", deep),
		"raw opens":        "{% raw %}" + rep("{%", deep),
		"raw spaces":       "{% raw %}" + rep("{%"+rep(" ", 1000)+"x", 500),
		"quote opens":      "{{ '" + rep("\\'", deep),
		"too long":         rep("x", maxSource+1),
		"big int":          "{{ " + rep("9", 5000) + " }}",
	} {
		refuse(t, name, source, nil)
	}
}

// TestParse_TakesLongSources parses what is long but harmless.
func TestParse_TakesLongSources(t *testing.T) {
	rep := strings.Repeat
	for name, source := range map[string]string{
		"sum":             "{{ 'a'" + rep(" + 'a'", 100_000) + " }}",
		"concat":          "{{ 'a'" + rep(" ~ 1", 100_000) + " }}",
		"list":            "{{ [" + rep("1,", 200_000) + "]|length }}",
		"white space":     "{%- if 1 -%}" + rep(" \n\t", 300_000) + "{%- endif -%}",
		"blank lines":     rep("   \n", 200_000) + "   {% if 1 %}x{% endif %}",
		"spaces in a tag": "{{ " + rep(" ", 900_000) + "1 }}",
		"braces":          rep("{ ", 400_000),
		"ifs in a row":    rep("{% if x %}{% set y = 1 %}{% endif %}", 25_000),
		"names": func() string {
			var b strings.Builder
			for i := range 50_000 {
				b.WriteString("{{ a" + rep("b", i%7) + " }}")
			}
			return b.String()
		}(),
		"elifs":         "{% if 1 %}" + rep("{% elif 2 %}{% set y = 1 %}", 30_000) + "{% endif %}",
		"body in loops": rep("{% for a in [1] %}", 20) + rep("{{ a }}{{ loop.index }}", 30_000) + rep("{% endfor %}", 20),
		"dashes":        rep("{{- 1 -}}  ", 80_000),
		"comments":      rep("{#- x -#}\n", 90_000),
		"brace noise":   "{% set a = '" + rep("{{", 400_000) + "' %}",
	} {
		start := time.Now()
		if _, err := render(source, nil); err != nil {
			var e *Error
			if !errors.As(err, &e) || !e.Limit {
				t.Errorf("%s: %v", name, err)
			}
		}
		if took := time.Since(start); took > patience {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

// TestRender_StackStaysSmall runs the deepest nesting that is allowed, in every level of
// the deepest recursion that is allowed, with a tenth of Go's default stack.
func TestRender_StackStaysSmall(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(100 << 20))
	nested := strings.Repeat("{% if 1 %}", 60) + "{% set x = " + strings.Repeat("[", 50) + "r()" + strings.Repeat("]", 50) + " %}" + strings.Repeat("{% endif %}", 60)
	e := refuse(t, "nested recursion", "{% macro r() %}"+nested+"{% endmacro %}{{ r() }}", nil)
	if !e.Limit || !strings.Contains(e.Message, "recursion") {
		t.Errorf("got %v, want the recursion limit", e)
	}
	chain := "{{ 1" + strings.Repeat(" and 1", 1400) + " and r() }}"
	refuse(t, "chained recursion", "{% macro r() %}"+chain+"{% endmacro %}{{ r() }}", nil)
}

func TestRender_HostileData(t *testing.T) {
	big := strings.Repeat("a", 10<<20)
	vars := NewDict(2)
	vars.Set("s", String(big))
	vars.Set("bad", String("a\xff\xc3b\xed\xa0\x80\x00"))
	got, err := render("{{ s|length }} {{ s[::-1]|length }} {{ (s ~ 'b').split('b')|length }} {{ s.replace('a', 'b')|length }} {{ s|trim('a')|length }}", vars)
	if err != nil || got != "10485760 10485760 2 10485760 0" {
		t.Errorf("10 MB: %q %v", got, err)
	}
	got, err = render("{{ bad }}|{{ bad|length }}|{{ bad[::-1]|length }}|{{ bad|upper }}|{{ bad|tojson }}|{{ [bad] }}|{{ bad|list|join }}|{{ bad|title|lower }}", vars)
	if err != nil || !strings.HasPrefix(got, "a\xff\xc3b\xed\xa0\x80\x00|8|8|A\xff\xc3B\xed\xa0\x80\x00|") {
		t.Errorf("bytes that are not UTF-8: %q %v", got, err)
	}
	deep := None()
	for range 100_000 {
		deep = List([]Value{deep})
	}
	vars.Set("deep", deep)
	for _, source := range []string{"{{ deep }}", "{{ deep|tojson }}", "{{ deep|tojson(indent=1) }}", "{{ deep == deep[0] }}", "{{ deep|string }}", "{{ '%s' % deep }}", "{{ [deep]|sort }}{{ [deep, deep[0]]|sort }}"} {
		refuse(t, source, source, vars)
	}
}

// TestRender_Limits checks the bounds of Env.
func TestRender_Limits(t *testing.T) {
	try := func(source string, env *Env) error {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		before := []byte("kept")
		out, err := tmpl.Render(before, nil, env)
		if err != nil && string(out) != "kept" {
			t.Errorf("%s: output %q after an error", source, out)
		}
		return err
	}
	f := func(source string, ok, refused *Env) {
		t.Helper()
		if err := try(source, ok); err != nil {
			t.Errorf("%s: %v", source, err)
		}
		var e *Error
		if err := try(source, refused); !errors.As(err, &e) || !e.Limit {
			t.Errorf("%s: got %v, want a limit", source, err)
		}
	}
	f("{{ 'abcde' }}", &Env{MaxOutput: 5}, &Env{MaxOutput: 4})
	f("{% set x = 'ab' ~ 'cde' %}", &Env{MaxOutput: 5}, &Env{MaxOutput: 4})
	f("{% for i in range(90) %}{% endfor %}", &Env{MaxSteps: 100}, &Env{MaxSteps: 80})
	f("{% macro f(n) %}{% if n > 1 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", &Env{MaxDepth: 5}, &Env{MaxDepth: 4})
}

// TestRender_Stops: a Render asks now and then whether to go on, also where it only makes
// text.
func TestRender_Stops(t *testing.T) {
	for _, source := range []string{
		"{% for i in range(90000) %}{% endfor %}",
		"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(16) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(16) %}{% set ns.s = ns.s[1:] %}{% endfor %}",
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		env := &Env{Stop: func() bool { asked++; return asked == 3 }}
		_, err = tmpl.Render(nil, nil, env)
		var e *Error
		if !errors.As(err, &e) || !e.Limit || asked != 3 {
			t.Errorf("%s: asked %d times: %v", source, asked, err)
		}
		env.Stop = func() bool { return false }
		if _, err := tmpl.Render(nil, nil, env); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
}
