package jinja

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

var strMethods map[string]methodFn

// The table refers to str.format, which looks attributes up, so it cannot be its
// initial value.
func init() {
	strMethods = map[string]methodFn{
		"capitalize":   strMethod(capitalize),
		"center":       padMethod('c'),
		"count":        strCount,
		"endswith":     affix(strings.HasSuffix),
		"expandtabs":   strExpandTabs,
		"find":         strFind(false, false),
		"format":       strFormat,
		"format_map":   strFormatMap,
		"index":        strFind(false, true),
		"isalnum":      strIs(func(r rune) bool { return unicode.IsLetter(r) || isNumeric(r) }),
		"isalpha":      strIs(unicode.IsLetter),
		"isascii":      func(_ *state, s Value, a args) Value { a.want(0, 0); return Bool(isASCII(s.str())) },
		"isdecimal":    strIs(func(r rune) bool { return unicode.Is(unicode.Nd, r) }),
		"isdigit":      strIs(isDigit),
		"islower":      strTest(isLower),
		"isnumeric":    strIs(isNumeric),
		"isprintable":  strTest(func(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 }),
		"isspace":      strIs(isSpace),
		"istitle":      strTest(isTitleCase),
		"isupper":      strTest(isUpper),
		"join":         strJoin,
		"ljust":        padMethod('l'),
		"lower":        strMethod(lower),
		"lstrip":       stripMethod(true, false),
		"partition":    partition(strings.Index),
		"removeprefix": remove(strings.TrimPrefix),
		"removesuffix": remove(strings.TrimSuffix),
		"replace":      strReplace,
		"rfind":        strFind(true, false),
		"rindex":       strFind(true, true),
		"rjust":        padMethod('r'),
		"rpartition":   partition(strings.LastIndex),
		"rsplit":       strSplit(true),
		"rstrip":       stripMethod(false, true),
		"split":        strSplit(false),
		"splitlines":   strSplitLines,
		"startswith":   affix(strings.HasPrefix),
		"strip":        stripMethod(true, true),
		"swapcase":     strMethod(swapCase),
		"title":        strMethod(titleCase),
		"upper":        strMethod(upper),
		"zfill":        strZfill,
	}
}

func strMethod(f func(string) string) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(0, 0)
		st.charge(int(s.n) / stepBytes)
		return sameKind(f(s.str()), s)
	}
}

func strTest(f func(string) bool) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(0, 0)
		st.charge(int(s.n) / stepBytes)
		return Bool(f(s.str()))
	}
}

// strIs is a test that holds if s is not empty and ok holds for every character.
func strIs(ok func(rune) bool) methodFn {
	return strTest(func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
	})
}

func stripMethod(left, right bool) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(0, 1)
		return st.strip(s, opt(a.at(0), None()), left, right)
	}
}

// affix is startswith or endswith.
func affix(has func(s, affix string) bool) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(1, 3)
		text := s.str()
		st.scan(int(a.pos[0].n))
		if len(a.pos) > 1 {
			st.scan(len(text))
			from, to, ok := span(text, a)
			if !ok {
				return Bool(false)
			}
			text = text[from:to]
		}
		switch a.pos[0].k {
		case kString:
			return Bool(has(text, a.pos[0].str()))
		case kTuple:
			for _, one := range a.pos[0].items() {
				if wantString(one); has(text, one.str()) {
					return Bool(true)
				}
			}
			return Bool(false)
		}
		wantString(a.pos[0])
		return Value{}
	}
}

func wantString(v Value) string {
	if v.k == kUndefined {
		failUndefined(v)
	}
	if v.k != kString {
		failf("argument must be str, not %s", v.typeName())
	}
	return v.str()
}

// span returns the bytes of s between the arguments start and end, which are the
// second and third of find and others. ok is false if start is behind the end of s.
func span(s string, a args) (from, to int, ok bool) {
	n := utf8.RuneCountInString(s)
	start := opt(a.at(1), None())
	first, last, _ := sliceBounds(n, start, opt(a.at(2), None()), None())
	if start.k != kNone && sliceIndex(start, 0) > n {
		return 0, 0, false
	}
	if end := opt(a.at(2), None()); end.k != kNone {
		if e := sliceIndex(end, 0); e < 0 && e+n < first || e >= 0 && e < first {
			return 0, 0, false
		}
	}
	return offset(s, first, n), offset(s, last, n), true
}

func strFind(fromEnd, must bool) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(1, 3)
		sub, text := wantString(a.pos[0]), s.str()
		st.charge(len(text) / stepBytes)
		i := -1
		if from, to, ok := span(text, a); ok {
			find := strings.Index
			if fromEnd {
				find = strings.LastIndex
			}
			if i = find(text[from:to], sub); i >= 0 {
				i = utf8.RuneCountInString(text[:from+i])
			}
		}
		if i < 0 && must {
			fail("substring not found")
		}
		return Int(int64(i))
	}
}

func strCount(st *state, s Value, a args) Value {
	a.want(1, 3)
	sub := wantString(a.pos[0])
	st.charge(int(s.n) / stepBytes)
	from, to, ok := span(s.str(), a)
	if !ok {
		return Int(0)
	}
	return Int(int64(strings.Count(s.str()[from:to], sub)))
}

func strReplace(st *state, s Value, a args) Value {
	count, ok := a.pop("count")
	a.want(2, 3)
	if !ok {
		count = opt(a.at(2), Int(-1))
	}
	with := a.pos[1]
	wantString(with)
	if s.isMarkup() {
		with = String(st.escape(with))
	}
	return sameKind(st.replace(s.str(), wantString(a.pos[0]), with.str(), wantInt(count)), s)
}

// split returns text as a list of pieces, each as markup if like is.
func (st *state) pieces(parts []string, like Value) Value {
	items := st.newValues(len(parts))
	for i, part := range parts {
		items[i] = sameKind(part, like)
	}
	return List(items)
}

// strSplit is split or rsplit.
func strSplit(fromEnd bool) methodFn {
	return func(st *state, s Value, a args) Value {
		limit := int(math.MaxInt32)
		sep := None()
		if len(a.pos) == 1 && len(a.kw) == 0 {
			sep = a.pos[0]
		} else {
			var room [2]Value
			b := bindArgs(room[:0], a, []string{"sep", "maxsplit"}, 0)
			sep = opt(b[0], None())
			if n := wantInt(opt(b[1], Int(-1))); n >= 0 {
				limit = min(n, limit)
			}
		}
		st.charge(int(s.n) / stepBytes)
		if sep.k == kNone {
			if fromEnd {
				return st.pieces(rsplitSpace(s.str(), limit), s)
			}
			return st.pieces(splitSpace(s.str(), limit), s)
		}
		if wantString(sep) == "" {
			fail("empty separator")
		}
		return st.split(s, sep.str(), limit, fromEnd)
	}
}

func (st *state) split(s Value, sep string, limit int, fromEnd bool) Value {
	text := s.str()
	n := min(strings.Count(text, sep), limit)
	items := st.newValues(n + 1)
	for i := range n {
		if fromEnd {
			at := strings.LastIndex(text, sep)
			items[n-i] = sameKind(text[at+len(sep):], s)
			text = text[:at]
			continue
		}
		at := strings.Index(text, sep)
		items[i] = sameKind(text[:at], s)
		text = text[at+len(sep):]
	}
	if fromEnd {
		items[0] = sameKind(text, s)
	} else {
		items[n] = sameKind(text, s)
	}
	return List(items)
}

func strSplitLines(st *state, s Value, a args) Value {
	keep, ok := a.pop("keepends")
	a.want(0, 1)
	if !ok {
		keep = a.at(0)
	}
	st.charge(int(s.n) / stepBytes)
	return st.pieces(splitLines(s.str(), optBool(keep)), s)
}

func strJoin(st *state, s Value, a args) Value {
	a.want(1, 1)
	items := st.collect(a.pos[0])
	isMarkup := s.isMarkup()
	text := st.build(func(b []byte) []byte {
		for i, item := range items {
			if i > 0 {
				b = append(b, s.str()...)
			}
			switch {
			case isMarkup:
				b = append(b, st.escape(item)...)
			case item.k == kString:
				b = append(b, item.str()...)
			default:
				failf("sequence item %d: expected str instance, %s found", i, item.typeName())
			}
			st.bound(len(b))
		}
		return b
	})
	return sameKind(text, s)
}

func partition(find func(s, sub string) int) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(1, 1)
		sep, text := wantString(a.pos[0]), s.str()
		if sep == "" {
			fail("empty separator")
		}
		parts := st.newValues(3)
		i := find(text, sep)
		switch {
		case i >= 0:
			parts[0], parts[1], parts[2] = sameKind(text[:i], s), sameKind(sep, s), sameKind(text[i+len(sep):], s)
		case find("ab", "") == 0: // strings.Index
			parts[0], parts[1], parts[2] = s, sameKind("", s), sameKind("", s)
		default:
			parts[0], parts[1], parts[2] = sameKind("", s), sameKind("", s), s
		}
		return tuple(parts)
	}
}

func remove(trim func(s, affix string) string) methodFn {
	return func(_ *state, s Value, a args) Value {
		a.want(1, 1)
		return sameKind(trim(s.str(), wantString(a.pos[0])), s)
	}
}

// padMethod is center, ljust or rjust.
func padMethod(side byte) methodFn {
	return func(st *state, s Value, a args) Value {
		a.want(1, 2)
		fill := wantString(opt(a.at(1), String(" ")))
		if utf8.RuneCountInString(fill) != 1 {
			fail("The fill character must be exactly one character long")
		}
		return sameKind(st.pad(s.str(), wantInt(a.pos[0]), fill, side), s)
	}
}

// pad widens s to width characters.
func (st *state) pad(s string, width int, fill string, side byte) string {
	n := width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	left := 0
	switch side {
	case 'r':
		left = n
	case 'c':
		left = n/2 + n&width&1 // CPython puts the odd one left if width is odd
	}
	st.bound(n)
	st.charge(n / stepBytes)
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left)
}

func strZfill(st *state, s Value, a args) Value {
	a.want(1, 1)
	text, sign := s.str(), ""
	if text != "" && (text[0] == '+' || text[0] == '-') {
		sign, text = text[:1], text[1:]
	}
	return sameKind(sign+st.pad(text, wantInt(a.pos[0])-len(sign), "0", 'r'), s)
}

func strExpandTabs(st *state, s Value, a args) Value {
	size, ok := a.pop("tabsize")
	a.want(0, 1)
	if !ok {
		size = opt(a.at(0), Int(8))
	}
	width, column := wantInt(size), 0
	return sameKind(st.build(func(b []byte) []byte {
		for i, r := range s.str() {
			switch {
			case r == '\t' && width > 0:
				n := width - column%width
				st.bound(len(b) + n)
				b = append(b, strings.Repeat(" ", n)...)
				column += n
			case r == '\t':
			default:
				b = append(b, s.str()[i:i+runeSize(s.str()[i:])]...)
				if column++; r == '\n' || r == '\r' {
					column = 0
				}
			}
		}
		return b
	}), s)
}
