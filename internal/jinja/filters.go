package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// refusedFilters exist in jinja2 but not here.
var refusedFilters = []string{"random", "urlize", "wordwrap", "xmlattr", "striptags", "filesizeformat", "pprint"}

var filters map[string]filterDef

// The table refers to filters that look filters up, so it cannot be its initial value.
func init() {
	filters = map[string]filterDef{
		"abs":         {fn: filterAbs},
		"attr":        {params: []string{"name"}, need: 1, fn: filterAttr},
		"batch":       {params: []string{"linecount", "fill_with"}, need: 1, fn: filterBatch},
		"capitalize":  {fn: strFilter(capitalize)},
		"center":      {params: []string{"width"}, fn: filterCenter},
		"count":       {fn: filterLength},
		"d":           {params: []string{"default_value", "boolean"}, fn: filterDefault},
		"default":     {params: []string{"default_value", "boolean"}, fn: filterDefault},
		"dictsort":    {params: []string{"case_sensitive", "by", "reverse"}, fn: filterDictsort},
		"e":           {fn: filterEscape},
		"escape":      {fn: filterEscape},
		"first":       {fn: filterFirst},
		"float":       {params: []string{"default"}, fn: filterFloat},
		"forceescape": {fn: filterForceEscape},
		"format":      {raw: filterFormat},
		"groupby":     {params: []string{"attribute", "default", "case_sensitive"}, need: 1, fn: filterGroupby},
		"indent":      {params: []string{"width", "first", "blank"}, fn: filterIndent},
		"int":         {params: []string{"default", "base"}, fn: filterInt},
		"items":       {fn: filterItems},
		"join":        {params: []string{"d", "attribute"}, fn: filterJoin},
		"last":        {fn: filterLast},
		"length":      {fn: filterLength},
		"list":        {fn: filterList},
		"lower":       {fn: strFilter(lower)},
		"map":         {raw: filterMap},
		"max":         {params: []string{"case_sensitive", "attribute"}, fn: filterMax},
		"min":         {params: []string{"case_sensitive", "attribute"}, fn: filterMin},
		"reject":      {raw: selector(false, false)},
		"rejectattr":  {raw: selector(false, true)},
		"replace":     {params: []string{"old", "new", "count"}, need: 2, fn: filterReplace},
		"reverse":     {fn: filterReverse},
		"round":       {params: []string{"precision", "method"}, fn: filterRound},
		"safe":        {fn: filterSafe},
		"select":      {raw: selector(true, false)},
		"selectattr":  {raw: selector(true, true)},
		"slice":       {params: []string{"slices", "fill_with"}, need: 1, fn: filterSlice},
		"sort":        {params: []string{"reverse", "case_sensitive", "attribute"}, fn: filterSort},
		"string":      {fn: func(st *state, v Value, _ []Value) Value { return st.wantStr(v) }},
		"sum":         {params: []string{"attribute", "start"}, fn: filterSum},
		"title":       {fn: filterTitle},
		"tojson":      {params: []string{"ensure_ascii", "indent", "separators", "sort_keys"}, fn: filterToJSON},
		"trim":        {params: []string{"chars"}, fn: filterTrim},
		"truncate":    {params: []string{"length", "killwords", "end", "leeway"}, fn: filterTruncate},
		"unique":      {params: []string{"case_sensitive", "attribute"}, fn: filterUnique},
		"upper":       {fn: strFilter(upper)},
		"urlencode":   {fn: filterURLEncode},
		"wordcount":   {fn: filterWordcount},
	}
}

// strFilter is a filter that maps text to text.
func strFilter(f func(string) string) func(*state, Value, []Value) Value {
	return func(st *state, v Value, _ []Value) Value {
		s := st.wantStr(v)
		st.charge(len(s.str()) / stepBytes)
		return sameKind(f(s.str()), s)
	}
}

func filterAbs(_ *state, v Value, _ []Value) Value {
	switch {
	case v.k == kFloat:
		return Value{k: kFloat, n: v.n &^ (-1 << 63)}
	case !v.isNumber():
		failf("bad operand type for abs(): '%s'", v.typeName())
	case compareNumbers(v, Int(0)) < 0:
		return arith(opSub, Int(0), v)
	}
	return plainInt(v)
}

func filterAttr(st *state, v Value, a []Value) Value {
	if v.k == kUndefined {
		failUndefined(v)
	}
	if a[0].k != kString {
		fail("attribute name must be string")
	}
	if found, ok := st.ownAttr(v, a[0].str()); ok {
		return found
	}
	return Value{}
}

func filterDefault(_ *state, v Value, a []Value) Value {
	if v.k == kUndefined || optBool(a[1]) && !truth(v) {
		return opt(a[0], String(""))
	}
	return v
}

func filterLength(st *state, v Value, _ []Value) Value { return Int(int64(st.mustLength(v))) }

func filterList(st *state, v Value, _ []Value) Value { return List(st.collect(v)) }

func filterFirst(st *state, v Value, _ []Value) Value {
	it := st.iterate(v)
	first, _ := it.next(st)
	return first
}

func filterLast(st *state, v Value, _ []Value) Value {
	if v.isSeq() || v.k == kString || v.k == kRange {
		last, _ := st.index(v, -1)
		return last
	}
	items := reversible(st, v)
	if len(items) == 0 {
		return Value{}
	}
	return items[len(items)-1]
}

// reversible returns the items of what reversed() takes.
func reversible(st *state, v Value) []Value {
	switch v.k {
	case kList, kTuple, kString, kDict, kView, kRange, kUndefined:
		return st.collect(v)
	}
	failf("'%s' object is not reversible", v.typeName())
	return nil
}

func filterReverse(st *state, v Value, _ []Value) Value {
	if v.k == kString {
		return st.slice(v, None(), None(), Int(-1))
	}
	if v.k == kIter || v.k == kLoop {
		items := slices.Clone(st.collect(v))
		slices.Reverse(items)
		return List(items)
	}
	items := reversible(st, v)
	i := len(items)
	return generator(func(*state) (Value, bool) {
		if i--; i < 0 {
			return Value{}, false
		}
		return items[i], true
	})
}

func filterItems(st *state, v Value, _ []Value) Value {
	i := 0
	switch v.k {
	case kUndefined, kDict:
	default:
		return generator(func(*state) (Value, bool) {
			fail("Can only get item pairs from a mapping.")
			return Value{}, false
		})
	}
	view := Value{k: kView, p: v.p, sub: viewItems}
	return generator(func(st *state) (Value, bool) {
		if v.k == kUndefined || i >= len(v.dict().entries) {
			return Value{}, false
		}
		i++
		return viewItem(st, view, i-1), true
	})
}

func filterJoin(st *state, v Value, a []Value) Value {
	get := st.attrGetter(a[1])
	sep := st.strOf(opt(a[0], String("")))
	it := st.iterate(v)
	return String(st.build(func(b []byte) []byte {
		for first := true; ; first = false {
			x, ok := it.next(st)
			if !ok {
				return b
			}
			if !first {
				b = append(b, sep...)
			}
			b = st.appendStr(b, get(x))
			st.bound(len(b))
		}
	}))
}

func filterReplace(st *state, v Value, a []Value) Value {
	count := -1
	if a[2].k != kMissing && a[2].k != kNone {
		count = wantInt(a[2])
	}
	return String(st.replace(st.strOf(v), st.strOf(a[0]), st.strOf(a[1]), count))
}

func (st *state) replace(s, old, with string, count int) string {
	st.charge(len(s) / stepBytes)
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return s
	}
	size := len(s) + n*(len(with)-len(old))
	st.bound(size)
	st.charge(size / stepBytes)
	return strings.Replace(s, old, with, n)
}

func filterTrim(st *state, v Value, a []Value) Value {
	s := st.wantStr(v)
	return st.strip(s, opt(a[0], None()), true, true)
}

func filterCenter(st *state, v Value, a []Value) Value {
	s := st.wantStr(v)
	return sameKind(st.pad(s.str(), wantInt(opt(a[0], Int(80))), " ", 'c'), s)
}

func filterIndent(st *state, v Value, a []Value) Value {
	if v.k != kString {
		st.add(v, String("\n")) // fails as Python does
		fail("object has no splitlines")
	}
	width := opt(a[0], Int(4))
	indent := ""
	if width.k == kString {
		indent = width.str()
	} else {
		indent = st.repeat(String(" "), Int(int64(wantInt(width)))).str()
	}
	if v.isMarkup() {
		indent = st.escape(String(indent))
	}
	lines := splitLines(v.str()+"\n", false)
	return sameKind(st.build(func(b []byte) []byte {
		for i, line := range lines {
			if i > 0 {
				b = append(b, '\n')
			}
			if i == 0 && optBool(a[1]) || i > 0 && (line != "" || optBool(a[2])) {
				b = append(b, indent...)
			}
			b = append(b, line...)
			st.bound(len(b))
		}
		return b
	}), v)
}

func filterTruncate(st *state, v Value, a []Value) Value {
	size, end, leeway := wantInt(opt(a[0], Int(255))), opt(a[2], String("...")), 5
	if a[3].k != kMissing && a[3].k != kNone {
		leeway = wantInt(a[3])
	}
	if end.k != kString {
		fail("truncate takes strings")
	}
	keep := size - utf8.RuneCountInString(end.str())
	if keep < 0 || leeway < 0 {
		fail("expected length >= the end and leeway >= 0")
	}
	if st.mustLength(v) <= size+leeway {
		return v
	}
	if v.k != kString {
		fail("truncate takes strings")
	}
	cut := st.slice(v, None(), Int(int64(keep)), None())
	if !optBool(a[1]) {
		if i := strings.LastIndexByte(cut.str(), ' '); i >= 0 {
			cut = sameKind(cut.str()[:i], cut)
		}
	}
	return st.add(cut, end)
}

func filterTitle(st *state, v Value, _ []Value) Value {
	s := st.strOf(v)
	st.charge(len(s) / stepBytes)
	return String(titleWords(s))
}

// titleWords is the title filter, which differs from str.title.
func titleWords(s string) string {
	var b strings.Builder
	for s != "" {
		n := strings.IndexFunc(s, isTitleGap)
		if n == 0 {
			n = len(s) - len(strings.TrimLeftFunc(s, isTitleGap))
		}
		if n < 0 {
			n = len(s)
		}
		_, first := utf8.DecodeRuneInString(s)
		b.WriteString(upper(s[:first]))
		b.WriteString(lower(s[first:n]))
		s = s[n:]
	}
	return b.String()
}

func isTitleGap(r rune) bool { return strings.ContainsRune("-({[<", r) || isSpace(r) }

func filterWordcount(st *state, v Value, _ []Value) Value {
	n, in := int64(0), false
	s := st.strOf(v)
	st.charge(len(s) / stepBytes)
	for _, r := range s {
		word := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
		if word && !in {
			n++
		}
		in = word
	}
	return Int(n)
}

func filterToJSON(st *state, v Value, a []Value) Value {
	f := jsonDefault
	f.ascii, f.sortKeys = optBool(a[0]), optBool(a[3])
	switch in := opt(a[1], None()); in.k {
	case kNone:
	case kString:
		f.indented, f.indent, f.item = true, in.str(), ","
	default:
		f.indented, f.item = true, ","
		f.indent = st.repeat(String(" "), Int(int64(wantInt(in)))).str()
	}
	if sep := opt(a[2], None()); sep.k != kNone {
		pair := st.collect(sep)
		if len(pair) != 2 || pair[0].k != kString || pair[1].k != kString {
			fail("separators must be two strings")
		}
		f.item, f.key = pair[0].str(), pair[1].str()
	}
	return String(st.build(func(b []byte) []byte { return st.appendJSON(b, v, &f, 0) }))
}
