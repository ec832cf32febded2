package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// attrExpr is e.name. What name means on the two common types is looked up once.
type attrExpr struct {
	e      expr
	name   string
	onStr  methodFn
	onDict methodFn
	hidden bool // a dict's method of that name is not for templates
}

func newAttr(e expr, name string) *attrExpr {
	return &attrExpr{e: e, name: name, onStr: strMethods[name], onDict: dictMethods[name], hidden: isHidden(kDict, name)}
}

func (e *attrExpr) eval(st *state) Value {
	v := e.e.eval(st)
	if v.k == kDict && e.onDict == nil && !e.hidden {
		if i := v.dict().find(e.name); i >= 0 {
			return v.dict().entries[i].val
		}
		return undefined(e.name)
	}
	return st.attr(v, e.name)
}

func (e *attrExpr) children(f func(expr)) { f(e.e) }

// methodFn is a method of a built-in type.
type methodFn func(st *state, self Value, a args) Value

// methodObj is a method that was read but not called, as in `x.get`.
type methodObj struct {
	self Value
	fn   methodFn
}

func (st *state) method(self Value, name string) Value {
	return Value{k: kMethod, p: unsafe.Pointer(&methodObj{self, methodsOf(self.k)[name]})}
}

func methodsOf(k kind) map[string]methodFn {
	switch k {
	case kString:
		return strMethods
	case kDict:
		return dictMethods
	case kList, kTuple:
		return listMethods
	case kLoop:
		return loopMethods
	case kCycler:
		return cyclerMethods
	case kFloat:
		return floatMethods
	}
	return nil
}

// isHidden tells the attributes that exist in Python and that the sandbox turns into
// something undefined: what changes a list or dict, and all with two underscores.
func isHidden(k kind, name string) bool {
	switch name {
	case "clear", "pop":
		return k == kDict || k == kList
	case "popitem", "setdefault", "update":
		return k == kDict
	case "append", "reverse", "insert", "sort", "extend", "remove":
		return k == kList
	}
	return strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// attr is environment.getattr: an attribute, else an item of that name.
func (st *state) attr(v Value, name string) Value {
	if v.k == kUndefined {
		failUndefined(v)
	}
	if found, ok := st.ownAttr(v, name); ok {
		return found
	}
	if v.k == kDict {
		if val, ok := v.dict().Get(name); ok {
			return val
		}
	}
	return undefined(name)
}

// ownAttr is Python's getattr under the sandbox; ok is false if there is none.
func (st *state) ownAttr(v Value, name string) (Value, bool) {
	st.scan(len(name))
	switch v.k {
	case kNamespace:
		return v.dict().Get(name)
	case kLoop:
		if a, ok := v.loop().attr(st, name); ok {
			return a, true
		}
	case kTuple:
		switch {
		case v.sub == subGroup && name == "grouper":
			return v.items()[0], true
		case v.sub == subGroup && name == "list":
			return v.items()[1], true
		}
	case kCycler:
		if name == "current" {
			return v.cycler().current(), true
		}
	case kMacro:
		if name == "name" {
			return String(v.macro().def.name), true
		}
	}
	if isHidden(v.k, name) {
		u := undefined(name)
		u.sub = subUnsafe
		return u, true
	}
	if methodsOf(v.k)[name] != nil && !(v.k == kTuple && name == "copy") {
		return st.method(v, name), true
	}
	if slices.Contains(unsupported[v.k], name) {
		failf("not supported: attribute '%s' of %s", name, v.typeName())
	}
	return Value{}, false
}

// unsupported are attributes that Python has and that no chat template needs. Taking
// them for undefined would be wrong.
var unsupported = map[kind][]string{
	kString: {"casefold", "encode", "isidentifier", "maketrans", "translate"},
	kDict:   {"fromkeys"},
	kBool:   {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real", "to_bytes"},
	kInt:    {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real", "to_bytes"},
	kBig:    {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real", "to_bytes"},
	kFloat:  {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "real"},
	kRange:  {"count", "index", "start", "step", "stop"},
	kView:   {"isdisjoint", "mapping"},
	kMacro:  {"arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller"},
	kIter:   {"close", "send", "throw", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom"},
	kFunc:   {"fromkeys", "sep", "used"},
	kCycler: {"items", "pos"},
}

// item is environment.getitem: an item, else for a str key an attribute.
func (st *state) item(v, key Value) Value {
	switch {
	case v.k == kUndefined:
		failUndefined(v)
	case v.k == kDict:
		if key.k == kList || key.k == kDict {
			return Value{} // unhashable: TypeError, which getitem swallows
		}
		if i := st.findKey(v.dict(), key); i >= 0 {
			return v.dict().entries[i].val
		}
	case key.k == kInt || key.k == kBool:
		if x, ok := st.index(v, int(key.n)); ok {
			return x
		}
		return Value{}
	}
	if key.k != kString {
		return Value{}
	}
	found, ok := st.ownAttr(v, key.str())
	if !ok || found.k == kUndefined {
		return Value{} // without the name, which may come from the request
	}
	return found
}

// index is v[i] for sequences.
func (st *state) index(v Value, i int) (Value, bool) {
	switch v.k {
	case kList, kTuple:
		items := v.items()
		if i < 0 {
			i += len(items)
		}
		if i >= 0 && i < len(items) {
			return items[i], true
		}
	case kString:
		st.scan(min(int(v.n), max(i, -i)))
		s, ok := runeAt(v.str(), i)
		c := String(s)
		c.sub = v.sub
		return c, ok
	case kRange:
		r := v.rng()
		if i < 0 {
			i += r.len()
		}
		if i >= 0 && i < r.len() {
			return Int(r.start + int64(i)*r.step), true
		}
	}
	return Value{}, false
}

// runeAt returns character i of s, from the end if i is negative.
func runeAt(s string, i int) (string, bool) {
	for ; i >= 0; i-- {
		if s == "" {
			return "", false
		}
		_, size := utf8.DecodeRuneInString(s)
		if i == 0 {
			return s[:size], true
		}
		s = s[size:]
	}
	for {
		if s == "" {
			return "", false
		}
		_, size := utf8.DecodeLastRuneInString(s)
		if i++; i == 0 {
			return s[len(s)-size:], true
		}
		s = s[:len(s)-size]
	}
}

// slice is v[start:stop:step].
func (st *state) slice(v, start, stop, step Value) Value {
	switch v.k {
	case kUndefined:
		failUndefined(v)
	case kString, kList, kTuple, kRange:
	default:
		failf("'%s' object is not subscriptable by a slice", v.typeName())
	}
	n := st.mustLength(v)
	from, to, by := sliceBounds(n, start, stop, step)
	count := (&rangeObj{int64(from), int64(to), int64(by)}).len()
	switch {
	case v.k == kString:
		s := String(st.sliceString(v.str(), from, count, by, n))
		s.sub = v.sub
		return s
	case v.k == kRange:
		r := v.rng()
		s := &rangeObj{r.start + int64(from)*r.step, 0, r.step * int64(by)}
		s.stop = s.start + int64(count)*s.step
		return Value{k: kRange, p: unsafe.Pointer(s)}
	case by == 1:
		return sequence(v.k, v.items()[from:from+count])
	}
	items := st.newValues(count)
	for i := range items {
		items[i] = v.items()[from+i*by]
	}
	return sequence(v.k, items)
}

// sliceBounds is Python's slice.indices. With count zero from is still in [0, n].
func sliceBounds(n int, start, stop, step Value) (from, to, by int) {
	if by = sliceIndex(step, 1); by == 0 {
		fail("slice step cannot be zero")
	}
	low, high := 0, n
	if by < 0 {
		low, high = -1, n-1
	}
	clamp := func(v Value, def int) int {
		if v.k == kNone {
			return def
		}
		i := sliceIndex(v, 0)
		if i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	if by < 0 {
		return clamp(start, high), clamp(stop, low), by
	}
	from, to = clamp(start, low), clamp(stop, high)
	return from, max(to, from), by
}

func sliceIndex(v Value, def int) int {
	const far = 1 << 40
	switch v.k {
	case kNone:
		return def
	case kInt, kBool:
		return int(min(max(v.n, -far), far))
	case kBig:
		return far * v.bigInt().Sign()
	}
	if v.k == kUndefined {
		failUndefined(v)
	}
	fail("slice indices must be integers or None")
	return 0
}

// sliceString returns count characters of s, which has n, from character from on,
// every by-th.
func (st *state) sliceString(s string, from, count, by, n int) string {
	if count == 0 {
		return ""
	}
	if by == 1 {
		start := offset(s, from, n)
		rest := s[start:]
		return rest[:offset(rest, count, n-from)]
	}
	if n != len(s) {
		st.charge(n / 64)
		runes := make([]string, 0, n)
		for s != "" {
			_, size := utf8.DecodeRuneInString(s)
			runes, s = append(runes, s[:size]), s[size:]
		}
		var b strings.Builder
		for i := range count {
			b.WriteString(runes[from+i*by])
		}
		return b.String()
	}
	room := st.newText(count)
	for i := range room {
		room[i] = s[from+i*by]
	}
	return unsafe.String(unsafe.SliceData(room), count)
}

// offset returns the byte offset of character i of s, which has n characters.
func offset(s string, i, n int) int {
	if i >= n {
		return len(s)
	}
	if n == len(s) {
		return i
	}
	at := 0
	for range i {
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return at
}
