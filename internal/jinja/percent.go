package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filterFormat is v % args or v % kwargs.
func filterFormat(st *state, v Value, a args) Value {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		fail("can't handle positional and keyword arguments at the same time")
	}
	s := st.wantStr(v)
	if len(a.kw) == 0 {
		return st.formatPercent(s, tuple(a.pos))
	}
	d := NewDict(len(a.kw))
	for _, kw := range a.kw {
		d.Set(kw.name, kw.v)
	}
	return st.formatPercent(s, d.Value())
}

// percent is the state of one `format % values`.
type percent struct {
	st     *state
	b      []byte
	rest   string // of the format
	values []Value
	next   int
	dict   *Dict // of %(name)s
	escape bool  // the format is markup: values are escaped
}

func (st *state) formatPercent(format, values Value) Value {
	p := &percent{st: st, rest: format.str(), escape: format.isMarkup()}
	mapping := false
	switch values.k {
	case kTuple:
		p.values = values.items()
	case kDict:
		p.dict, mapping = values.dict(), true
		p.values = []Value{values}
	default:
		mapping = values.k == kList || values.k == kUndefined || values.k == kRange
		p.values = []Value{values}
	}
	for {
		i := strings.IndexByte(p.rest, '%')
		if i < 0 {
			break
		}
		p.b = append(p.b, p.rest[:i]...)
		p.rest = p.rest[i+1:]
		p.field()
		st.bound(len(p.b))
	}
	if p.next < len(p.values) && !mapping {
		fail("not all arguments converted during string formatting")
	}
	p.b = append(p.b, p.rest...)
	return sameKind(st.copyText(p.b), format)
}

func (p *percent) take() Value {
	if p.next >= len(p.values) {
		fail("not enough arguments for format string")
	}
	p.next++
	return p.values[p.next-1]
}

// field formats one value; p.rest starts behind the percent sign.
func (p *percent) field() {
	if strings.HasPrefix(p.rest, "%") {
		p.b = append(p.b, '%')
		p.rest = p.rest[1:]
		return
	}
	var v Value
	named := strings.HasPrefix(p.rest, "(")
	if named {
		v = p.named()
	}
	f := spec{precision: -1, align: '>'}
	for p.rest != "" && strings.IndexByte("-+ #0", p.rest[0]) >= 0 {
		switch p.rest[0] {
		case '-':
			f.align = '<'
		case '0':
			f.zero = true
		case '#':
			f.alt = true
		case '+':
			f.sign = '+'
		case ' ':
			if f.sign == 0 {
				f.sign = ' '
			}
		}
		p.rest = p.rest[1:]
	}
	if f.width = p.number(); f.width < 0 {
		f.align, f.width = '<', -f.width
	}
	if strings.HasPrefix(p.rest, ".") {
		p.rest = p.rest[1:]
		f.precision = max(p.number(), 0)
	}
	p.rest = strings.TrimLeft(p.rest, "hlL")
	if p.rest == "" {
		fail("incomplete format")
	}
	c := p.rest[0]
	p.rest = p.rest[1:]
	if c == '%' {
		p.b = append(p.b, '%')
		return
	}
	if !named {
		v = p.take()
	}
	p.convert(c, f, v)
}

func (p *percent) named() Value {
	if p.dict == nil {
		fail("format requires a mapping")
	}
	depth := 0
	for i := range len(p.rest) {
		switch p.rest[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				v, ok := p.dict.Get(p.rest[1:i])
				if !ok {
					fail("format: no such key")
				}
				p.rest = p.rest[i+1:]
				p.next = len(p.values)
				return v
			}
		}
	}
	fail("incomplete format key")
	return Value{}
}

func (p *percent) number() int {
	if strings.HasPrefix(p.rest, "*") {
		p.rest = p.rest[1:]
		v := p.take()
		if !v.isInt() {
			fail("* wants int")
		}
		n := wantInt(v)
		p.st.bound(max(n, -n))
		return n
	}
	n := 0
	for p.rest != "" && p.rest[0] >= '0' && p.rest[0] <= '9' {
		n = n*10 + int(p.rest[0]-'0')
		p.st.bound(n)
		p.rest = p.rest[1:]
	}
	return n
}

func (p *percent) convert(c byte, f spec, v Value) {
	text := ""
	switch c {
	case 's':
		if text = p.st.strOf(v); p.escape {
			text = p.st.escape(v)
		}
	case 'r', 'a':
		text = p.st.build(func(b []byte) []byte { return p.st.appendRepr(b, v, 0) })
		if c == 'a' {
			text = asciiRepr(text)
		}
		if p.escape {
			text = p.st.escape(String(text))
		}
	case 'c':
		text = character(v)
	case 'd', 'i', 'u', 'x', 'X', 'o', 'e', 'E', 'f', 'F', 'g', 'G':
		p.b = p.st.appendNumber(p.b, c, f, v)
		return
	default:
		fail("unsupported format character")
	}
	if f.precision >= 0 {
		n := utf8.RuneCountInString(text)
		text = text[:offset(text, f.precision, n)]
	}
	f.zero = false
	p.b = f.pad(p.st, p.b, "", text)
}

func character(v Value) string {
	if v.k == kString && utf8.RuneCountInString(v.str()) == 1 {
		return v.str()
	}
	if !v.isInt() || v.k == kBig || !utf8.ValidRune(rune(v.n)) || v.n > utf8.MaxRune {
		fail("%c requires int or char")
	}
	return string(rune(v.n))
}

// asciiRepr escapes all but ASCII.
func asciiRepr(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			b = append(b, s[i])
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		b = appendBackslashed(b, r)
		i += size
	}
	return string(b)
}

// appendNumber formats v by a letter of printf.
func (st *state) appendNumber(dst []byte, c byte, f spec, v Value) []byte {
	if v.k == kUndefined {
		failUndefined(v)
	}
	if !v.isNumber() {
		failf("%%%c format: a number is required, not %s", c, v.typeName())
	}
	switch c {
	case 'd', 'i', 'u':
		if v.k == kFloat {
			v = floatToInt(v.float())
		}
		c = 'd'
	case 'x', 'X', 'o':
		if v.k == kFloat {
			failf("%%%c format: an integer is required, not float", c)
		}
	default:
		neg, digits := floatDigits(c, f, toFloat(v))
		return f.pad(st, dst, f.signOf(neg), digits)
	}
	neg, prefix, digits := intDigits(c, f.alt, v)
	if n := f.precision - len(digits); n > 0 {
		st.bound(n)
		digits = strings.Repeat("0", n) + digits
	}
	return f.pad(st, dst, f.signOf(neg)+prefix, digits)
}

// intDigits returns the parts of an int in the base of a letter.
func intDigits(c byte, alt bool, v Value) (neg bool, prefix, digits string) {
	base := map[byte]int{'d': 10, 'n': 10, 'x': 16, 'X': 16, 'o': 8, 'b': 2}[c]
	if base == 10 {
		digits = string(appendInt(nil, plainInt(v)))
	} else {
		digits = toBig(v).Text(base)
	}
	if neg = digits[0] == '-'; neg {
		digits = digits[1:]
	}
	if alt && base != 10 {
		prefix = "0" + string(rune(c))
	}
	if c == 'X' {
		digits = strings.ToUpper(digits)
	}
	return neg, prefix, digits
}

// floatDigits returns |v| in the form of a letter: e, f, g or one of them in capitals.
func floatDigits(c byte, f spec, v float64) (neg bool, digits string) {
	neg = math.Signbit(v) && !math.IsNaN(v)
	v = math.Abs(v)
	prec := f.precision
	if prec < 0 {
		prec = 6
	}
	if prec > 400 {
		failLimit("precision is too large")
	}
	switch low := c | 0x20; {
	case math.IsNaN(v):
		digits = "nan"
	case math.IsInf(v, 0):
		digits = "inf"
	case low == 'g':
		digits = general(v, max(prec, 1), f.alt)
	default:
		digits = strconv.FormatFloat(v, low, prec, 64)
		if f.alt && prec == 0 {
			digits = strings.Replace(digits+".", "e", ".e", 1)
		}
	}
	if c < 'a' {
		digits = strings.ToUpper(digits)
	}
	return neg, digits
}

// general is C's %g: prec significant digits, without trailing zeros unless alt.
func general(v float64, prec int, alt bool) string {
	e := strconv.FormatFloat(v, 'e', prec-1, 64)
	at := strings.IndexByte(e, 'e')
	exp, _ := strconv.Atoi(e[at+1:])
	trim := func(s string) string {
		if alt || !strings.Contains(s, ".") {
			return s
		}
		return strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if exp < -4 || exp >= prec {
		return trim(e[:at]) + e[at:]
	}
	return trim(strconv.FormatFloat(v, 'f', prec-1-exp, 64))
}
