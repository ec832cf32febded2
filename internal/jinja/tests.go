package jinja

// testDef describes a test: fn with need arguments.
type testDef struct {
	need int
	fn   func(st *state, v Value, a []Value) bool
}

func (d *testDef) apply(st *state, v Value, a args) bool {
	if len(a.pos) != d.need || len(a.kw) != 0 {
		failf("test takes %d arguments, got %d", d.need, len(a.pos)+len(a.kw))
	}
	return d.fn(st, v, a.pos)
}

var tests map[string]testDef

// The table refers to tests that look tests up, so it cannot be its initial value.
func init() {
	tests = map[string]testDef{
		"defined":     {fn: func(_ *state, v Value, _ []Value) bool { return v.k != kUndefined }},
		"undefined":   {fn: isKind(kUndefined)},
		"none":        {fn: isKind(kNone)},
		"boolean":     {fn: isKind(kBool)},
		"true":        {fn: func(_ *state, v Value, _ []Value) bool { return v.k == kBool && v.n == 1 }},
		"false":       {fn: func(_ *state, v Value, _ []Value) bool { return v.k == kBool && v.n == 0 }},
		"integer":     {fn: func(_ *state, v Value, _ []Value) bool { return v.k == kInt || v.k == kBig }},
		"float":       {fn: isKind(kFloat)},
		"number":      {fn: func(_ *state, v Value, _ []Value) bool { return v.isNumber() }},
		"string":      {fn: isKind(kString)},
		"mapping":     {fn: isKind(kDict)},
		"sequence":    {fn: isSequence},
		"iterable":    {fn: func(_ *state, v Value, _ []Value) bool { return iterable(v) }},
		"callable":    {fn: isCallable},
		"escaped":     {fn: func(_ *state, v Value, _ []Value) bool { return v.isMarkup() }},
		"odd":         {fn: func(st *state, v Value, _ []Value) bool { return st.equal(st.binary(opMod, v, Int(2)), Int(1)) }},
		"even":        {fn: func(st *state, v Value, _ []Value) bool { return st.equal(st.binary(opMod, v, Int(2)), Int(0)) }},
		"divisibleby": {1, func(st *state, v Value, a []Value) bool { return st.equal(st.binary(opMod, v, a[0]), Int(0)) }},
		"lower":       {fn: func(st *state, v Value, _ []Value) bool { return isLower(st.strOf(v)) }},
		"upper":       {fn: func(st *state, v Value, _ []Value) bool { return isUpper(st.strOf(v)) }},
		"sameas":      {1, func(_ *state, v Value, a []Value) bool { return v == a[0] }},
		"in":          {1, func(st *state, v Value, a []Value) bool { return st.contains(a[0], v) }},
		"filter":      {fn: func(_ *state, v Value, _ []Value) bool { _, ok := filters[nameOf(v)]; return ok }},
		"test":        {fn: func(_ *state, v Value, _ []Value) bool { _, ok := tests[nameOf(v)]; return ok }},
	}
	for op, names := range map[compareOp][]string{
		cmpEq: {"==", "eq", "equalto"}, cmpNe: {"!=", "ne"},
		cmpGt: {">", "gt", "greaterthan"}, cmpGe: {">=", "ge"},
		cmpLt: {"<", "lt", "lessthan"}, cmpLe: {"<=", "le"},
	} {
		for _, name := range names {
			tests[name] = testDef{1, func(st *state, v Value, a []Value) bool { return st.compare(op, v, a[0]) }}
		}
	}
}

func isKind(k kind) func(*state, Value, []Value) bool {
	return func(_ *state, v Value, _ []Value) bool { return v.k == k }
}

func isSequence(_ *state, v Value, _ []Value) bool {
	switch v.k {
	case kString, kList, kTuple, kDict, kRange, kUndefined:
		return true
	}
	return false
}

func isCallable(_ *state, v Value, _ []Value) bool {
	switch v.k {
	case kMacro, kFunc, kMethod, kLoop, kUndefined:
		return true
	}
	return false
}

// nameOf returns the name that the tests filter and test look up.
func nameOf(v Value) string {
	switch v.k {
	case kString:
		return v.str()
	case kList, kDict:
		hashKey(v) // fails
	}
	return ""
}
