package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is a format specification: of % and of str.format.
type spec struct {
	fill      string
	align     byte // '<', '>', '^', '=' or 0
	sign      byte // '+', ' ', '-' or 0
	alt, zero bool
	width     int
	group     byte // ',' or '_'
	precision int  // -1: none
	kind      byte // 0: none
}

func (f *spec) signOf(neg bool) string {
	switch {
	case neg:
		return "-"
	case f.sign == '+' || f.sign == ' ':
		return string(rune(f.sign))
	}
	return ""
}

// pad appends sign and body, widened to f.width.
func (f *spec) pad(st *state, dst []byte, sign, body string) []byte {
	n := f.width - utf8.RuneCountInString(body) - len(sign)
	fill := f.fill
	if fill == "" {
		fill = " "
	}
	if n <= 0 {
		return append(append(dst, sign...), body...)
	}
	st.bound(n * len(fill))
	left, right := n, 0
	switch {
	case f.align == '=' || f.zero && f.align != '<' && f.align != '^':
		if f.zero && f.fill == "" {
			fill = "0"
		}
		return append(append(append(dst, sign...), strings.Repeat(fill, n)...), body...)
	case f.align == '<':
		left, right = 0, n
	case f.align == '^':
		left, right = n/2, n-n/2
	}
	dst = append(append(dst, strings.Repeat(fill, left)...), sign...)
	return append(append(dst, body...), strings.Repeat(fill, right)...)
}

// formatter is the state of one str.format.
type formatter struct {
	st      *state
	a       args
	named   func(name string) (Value, bool)
	auto    int // number of the next {}; -1 once numbers are given
	escaped bool
}

func strFormat(st *state, s Value, a args) Value {
	f := &formatter{st: st, a: a, escaped: s.isMarkup()}
	f.named = func(name string) (Value, bool) {
		for _, kw := range a.kw {
			if kw.name == name {
				return kw.v, true
			}
		}
		return Value{}, false
	}
	return sameKind(st.copyText(f.format(nil, s.str(), 2)), s)
}

func strFormatMap(st *state, s Value, a args) Value {
	a.want(1, 1)
	if a.pos[0].k != kDict {
		fail("format_map takes a mapping")
	}
	f := &formatter{st: st, named: a.pos[0].dict().Get, escaped: s.isMarkup()}
	return sameKind(st.copyText(f.format(nil, s.str(), 2)), s)
}

// format appends the text of a format string. Fields inside of specifications may be
// nested depth levels deep.
func (f *formatter) format(dst []byte, text string, depth int) []byte {
	if depth < 0 {
		fail("Max string recursion exceeded")
	}
	for {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			return append(dst, text...)
		}
		dst = append(dst, text[:i]...)
		f.st.bound(len(dst))
		c := text[i]
		text = text[i+1:]
		if text != "" && text[0] == c {
			dst = append(dst, c)
			text = text[1:]
			continue
		}
		if c == '}' {
			fail("Single '}' encountered in format string")
		}
		end := fieldEnd(text)
		dst = f.field(dst, text[:end], depth)
		text = text[end+1:]
	}
}

// fieldEnd returns the place of the brace that closes the field text starts with.
func fieldEnd(text string) int {
	level, bracket := 0, false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '[' && level == 0:
			bracket = true
		case c == ']':
			bracket = false
		case bracket:
		case c == '{':
			level++
		case c == '}' && level == 0:
			return i
		case c == '}':
			level--
		}
	}
	fail("expected '}' before end of string")
	return 0
}

func (f *formatter) field(dst []byte, field string, depth int) []byte {
	name, specText := field, ""
	conversion := byte(0)
	if i := strings.IndexAny(field, ":!"); i >= 0 {
		name, specText = field[:i], field[i+1:]
		if field[i] == '!' {
			if specText == "" || len(specText) > 1 && specText[1] != ':' {
				fail("expected ':' after conversion specifier")
			}
			conversion = specText[0]
			specText = strings.TrimPrefix(specText[1:], ":")
		}
	}
	v := f.lookup(name)
	specText = string(f.format(nil, specText, depth-1))
	switch conversion {
	case 0:
	case 's':
		v = String(f.st.strOf(v))
	case 'r', 'a':
		text := f.st.build(func(b []byte) []byte { return f.st.appendRepr(b, v, 0) })
		if conversion == 'a' {
			text = asciiRepr(text)
		}
		v = String(text)
	default:
		fail("Unknown conversion specifier")
	}
	if f.escaped {
		start := len(dst)
		dst = f.st.appendFormatted(dst, v, specText)
		if v.isMarkup() {
			return dst
		}
		return append(dst[:start], htmlEscaper.Replace(string(dst[start:]))...)
	}
	return f.st.appendFormatted(dst, v, specText)
}

// lookup finds the value of a field name such as 0.a[b].
func (f *formatter) lookup(name string) Value {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	v := f.first(name[:end])
	for rest := name[end:]; rest != ""; {
		if rest[0] == '.' {
			rest = rest[1:]
			n := strings.IndexAny(rest, ".[")
			if n < 0 {
				n = len(rest)
			}
			if n == 0 {
				fail("Empty attribute in format string")
			}
			v = f.st.attr(v, rest[:n])
			rest = rest[n:]
			continue
		}
		n := strings.IndexByte(rest, ']')
		if n < 2 || rest[0] != '[' {
			fail("Empty attribute or missing ']' in format string")
		}
		key := String(rest[1:n])
		if i, err := strconv.Atoi(rest[1:n]); err == nil && rest[1] != '-' && rest[1] != '+' {
			key = Int(int64(i))
		}
		v = f.st.item(v, key)
		rest = rest[n+1:]
	}
	return v
}

func (f *formatter) first(name string) Value {
	i, err := strconv.Atoi(name)
	switch {
	case name == "":
		if f.auto < 0 {
			fail("cannot switch from manual field specification to automatic field numbering")
		}
		i = f.auto
		f.auto++
	case err != nil:
		v, ok := f.named(name)
		if !ok {
			fail("format: no such key")
		}
		return v
	case f.auto > 0:
		fail("cannot switch from automatic field numbering to manual field specification")
	default:
		f.auto = -1
	}
	if i < 0 || i >= len(f.a.pos) {
		fail("Replacement index out of range for positional args tuple")
	}
	return f.a.pos[i]
}

// appendFormatted is format(v, spec).
func (st *state) appendFormatted(dst []byte, v Value, text string) []byte {
	if text == "" {
		return st.appendStr(dst, v)
	}
	f := parseSpec(st, text)
	switch {
	case v.k == kString:
		return st.appendFormattedString(dst, v.str(), f)
	case v.k == kFloat || v.isInt() && strings.IndexByte("eEfFgG%", f.kind) >= 0 && f.kind != 0:
		return st.appendFormattedFloat(dst, toFloat(v), f)
	case v.k == kBool && f.kind == 0:
		v = plainInt(v)
		fallthrough
	case v.isInt():
		return st.appendFormattedInt(dst, v, f)
	}
	failf("unsupported format string passed to %s.__format__", v.typeName())
	return dst
}

// parseSpec reads [[fill]align][sign][#][0][width][group][.precision][type].
func parseSpec(st *state, s string) spec {
	f := spec{precision: -1}
	_, size := utf8.DecodeRuneInString(s)
	switch {
	case len(s) > size && strings.IndexByte("<>=^", s[size]) >= 0:
		f.fill, f.align = s[:size], s[size]
		s = s[size+1:]
	case strings.IndexByte("<>=^", s[0]) >= 0:
		f.align = s[0]
		s = s[1:]
	}
	next := func(set string) byte {
		if s != "" && strings.IndexByte(set, s[0]) >= 0 {
			c := s[0]
			s = s[1:]
			return c
		}
		return 0
	}
	number := func() int {
		n := 0
		for s != "" && s[0] >= '0' && s[0] <= '9' {
			n = n*10 + int(s[0]-'0')
			st.bound(n)
			s = s[1:]
		}
		return n
	}
	f.sign = next("+- ")
	f.alt = next("#") != 0
	f.zero = next("0") != 0
	f.width = number()
	f.group = next(",_")
	if next(".") != 0 {
		if s == "" || s[0] < '0' || s[0] > '9' {
			fail("Format specifier missing precision")
		}
		f.precision = number()
	}
	f.kind = next("bcdeEfFgGnosxX%")
	if s != "" {
		fail("Invalid format specifier")
	}
	return f
}

func (st *state) appendFormattedString(dst []byte, s string, f spec) []byte {
	if f.kind != 0 && f.kind != 's' || f.sign != 0 || f.alt || f.group != 0 || f.align == '=' {
		fail("Invalid format specifier for str")
	}
	if f.precision >= 0 {
		s = s[:offset(s, f.precision, utf8.RuneCountInString(s))]
	}
	if f.zero && f.fill == "" {
		f.fill = "0"
	}
	f.zero = false
	if f.align == 0 {
		f.align = '<'
	}
	return f.pad(st, dst, "", s)
}

func (st *state) appendFormattedInt(dst []byte, v Value, f spec) []byte {
	if f.precision >= 0 {
		fail("Precision not allowed in integer format specifier")
	}
	kind := f.kind
	switch kind {
	case 0, 'n':
		kind = 'd'
	case 'c':
		return f.pad(st, dst, "", character(v))
	case 's':
		fail("Unknown format code 's' for object of type 'int'")
	}
	if f.group == ',' && kind != 'd' {
		fail("Cannot specify ',' with this format code")
	}
	neg, prefix, digits := intDigits(kind, f.alt, v)
	step := 3
	if kind != 'd' {
		step = 4
	}
	return f.padNumber(st, dst, f.signOf(neg)+prefix, digits, "", step)
}

func (st *state) appendFormattedFloat(dst []byte, v float64, f spec) []byte {
	kind, suffix := f.kind, ""
	var neg bool
	var digits string
	switch {
	case kind == '%':
		neg, digits = floatDigits('f', f, v*100)
		suffix = "%"
	case kind == 0 && f.precision < 0:
		digits = string(appendFloat(nil, math.Abs(v)))
		neg = math.Signbit(v) && !math.IsNaN(v)
	case kind == 0:
		neg, digits = floatDigits('g', f, v)
		if !strings.ContainsAny(digits, ".en") {
			digits += ".0"
		}
	case kind == 'n':
		neg, digits = floatDigits('g', f, v)
	case strings.IndexByte("eEfFgG", kind) >= 0:
		neg, digits = floatDigits(kind, f, v)
	default:
		fail("Unknown format code for object of type 'float'")
	}
	whole := strings.IndexAny(digits, ".eE")
	if whole < 0 {
		whole = len(digits)
	}
	return f.padNumber(st, dst, f.signOf(neg), digits[:whole], digits[whole:]+suffix, 3)
}

// padNumber groups the digits and pads the number; zeros in front are grouped too.
func (f *spec) padNumber(st *state, dst []byte, sign, digits, rest string, step int) []byte {
	if f.zero && f.fill == "" {
		f.fill = "0"
		if f.align == 0 {
			f.align = '='
		}
	}
	f.zero = false
	if f.group != 0 {
		least := 0
		if f.fill == "0" && f.align == '=' {
			least = f.width - len(sign) - len(rest)
		}
		digits = groupDigits(digits, f.group, step, least)
	}
	if f.align == 0 {
		f.align = '>'
	}
	return f.pad(st, dst, sign, digits+rest)
}

func groupDigits(digits string, sep byte, step, least int) string {
	var b []byte // from the end
	for i, n := len(digits)-1, 0; i >= 0 || len(b) < least; i-- {
		if n == step {
			b = append(b, sep)
			n = 0
		}
		c := byte('0')
		if i >= 0 {
			c = digits[i]
		}
		b = append(b, c)
		n++
	}
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
