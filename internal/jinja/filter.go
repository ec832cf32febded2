package jinja

import "slices"

// filterDef describes a filter. A filter gets its arguments by position, those that
// were not given as missing; a raw one gets them as they were written.
type filterDef struct {
	params []string
	need   int // how many of params have no default
	fn     func(st *state, v Value, a []Value) Value
	raw    func(st *state, v Value, a args) Value
}

// apply calls the filter.
func (d *filterDef) apply(st *state, v Value, a args) Value {
	st.charge(1)
	if d.raw != nil {
		return d.raw(st, v, a)
	}
	if len(a.kw) == 0 && len(a.pos) == len(d.params) {
		return d.fn(st, v, a.pos)
	}
	base := len(st.stack)
	st.stack = bindArgs(st.stack, a, d.params, d.need)
	v = d.fn(st, v, st.stack[base:len(st.stack):len(st.stack)])
	st.stack = st.stack[:base]
	return v
}

// bindArgs appends the arguments in the order of params, missing where none is given.
func bindArgs(dst []Value, a args, params []string, need int) []Value {
	if len(a.pos) > len(params) {
		failf("takes at most %d arguments, got %d", len(params), len(a.pos))
	}
	dst = append(dst, a.pos...)
	for i := len(a.pos); i < len(params); i++ {
		v, ok := a.pop(params[i])
		if !ok {
			if v = missing; i < need {
				failf("missing argument '%s'", params[i])
			}
		}
		dst = append(dst, v)
	}
	if a.left() {
		fail("unexpected keyword argument")
	}
	return dst
}

// filterExpr is e|name(args).
type filterExpr struct {
	line int
	e    expr
	name string
	args argList
	def  *filterDef // nil if there is no such filter
	json bool       // tojson without arguments
}

func (e *filterExpr) resolve(c *compiler) {
	d, ok := filters[e.name]
	switch {
	case ok:
		e.def = &d
		a := &e.args
		e.json = e.name == "tojson" && len(a.pos)+len(a.kw) == 0 && a.dynPos == nil && a.dynKw == nil
	case slices.Contains(refusedFilters, e.name):
		c.fail(e.line, "filter '"+e.name+"' is not supported")
	case !c.soft:
		c.fail(e.line, "no filter named '"+e.name+"'")
	}
}

func (e *filterExpr) children(f func(expr)) {
	f(e.e)
	e.args.children(f)
}

func (e *filterExpr) eval(st *state) Value {
	if e.def == nil {
		failf("no filter named '%s'", e.name)
	}
	v := e.e.eval(st)
	base := len(st.stack)
	v = e.def.apply(st, v, e.args.eval(st))
	st.stack = st.stack[:base]
	return v
}

func (e *filterExpr) emit(st *state) {
	if !e.json {
		st.out = st.appendStr(st.out, e.eval(st))
		return
	}
	v := e.e.eval(st)
	st.charge(1)
	st.out = st.appendJSON(st.out, v, &jsonDefault, 0)
}

// testExpr is e is name(args).
type testExpr struct {
	line    int
	e       expr
	name    string
	args    argList
	negated bool
	def     *testDef
}

func (e *testExpr) resolve(c *compiler) {
	if d, ok := tests[e.name]; ok {
		e.def = &d
	} else if !c.soft {
		c.fail(e.line, "no test named '"+e.name+"'")
	}
}

func (e *testExpr) children(f func(expr)) {
	f(e.e)
	e.args.children(f)
}

func (e *testExpr) eval(st *state) Value {
	if e.def == nil {
		failf("no test named '%s'", e.name)
	}
	v := e.e.eval(st)
	base := len(st.stack)
	ok := e.def.apply(st, v, e.args.eval(st))
	st.stack = st.stack[:base]
	return Bool(ok != e.negated)
}

func opt(v, def Value) Value {
	if v.k == kMissing {
		return def
	}
	return v
}

func optBool(v Value) bool { return truth(v) } // missing is false

// wantStr is soft_str: markup stays markup, all else becomes a str.
func (st *state) wantStr(v Value) Value {
	if v.k == kString {
		return v
	}
	return String(st.strOf(v))
}

// wantInt returns an argument that must be an int.
func wantInt(v Value) int {
	const far = 1 << 40
	switch {
	case v.k == kUndefined:
		failUndefined(v)
	case v.k == kBig:
		return far * v.bigInt().Sign()
	case !v.isInt():
		failf("'%s' object cannot be interpreted as an integer", v.typeName())
	}
	return int(min(max(v.n, -far), far))
}

// sameKind returns s as markup if like is markup.
func sameKind(s string, like Value) Value {
	v := String(s)
	v.sub = like.sub
	return v
}
