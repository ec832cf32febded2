package jinja

import (
	"strings"
)

// htmlEscaper writes what markupsafe.escape writes.
var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// escape returns str(v) escaped for HTML, unless v is markup.
func (st *state) escape(v Value) string {
	s := st.strOf(v)
	if v.isMarkup() {
		return s
	}
	st.charge(len(s) / stepBytes)
	s = htmlEscaper.Replace(s)
	st.bound(len(s))
	return s
}

func filterEscape(st *state, v Value, _ []Value) Value { return markup(st.escape(v)) }

func filterForceEscape(st *state, v Value, _ []Value) Value {
	return markup(st.escape(String(st.strOf(v))))
}

func filterSafe(st *state, v Value, _ []Value) Value { return markup(st.strOf(v)) }

// filterURLEncode quotes a text, or the pairs of a dict as a query.
func filterURLEncode(st *state, v Value, _ []Value) Value {
	if v.k == kString || !iterable(v) {
		s := st.strOf(v)
		st.charge(len(s) / stepBytes)
		return String(quoteURL(s, false))
	}
	if v.k == kDict {
		v = Value{k: kView, p: v.p, sub: viewItems}
	}
	var parts []string
	it := st.iterate(v)
	for {
		pair, ok := it.next(st)
		if !ok {
			return String(strings.Join(parts, "&"))
		}
		kv := st.collect(pair)
		if len(kv) != 2 {
			fail("too many or not enough values to unpack (expected 2)")
		}
		st.charge(1 + int(kv[0].n+kv[1].n)/stepBytes)
		parts = append(parts, quoteURL(st.strOf(kv[0]), true)+"="+quoteURL(st.strOf(kv[1]), true))
	}
}

// quoteURL is urllib's quote; in a query blanks become "+" and slashes are quoted.
func quoteURL(s string, query bool) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9', strings.IndexByte("_.-~", c) >= 0, c == '/' && !query:
			b = append(b, c)
		case c == ' ' && query:
			b = append(b, '+')
		default:
			b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		}
	}
	return string(b)
}
