package jinja

import "unsafe"

type kwarg struct {
	name string // "" once it is used
	v    Value
}

// args are the evaluated arguments of a call. pos lives only during the call.
type args struct {
	pos []Value
	kw  []kwarg
}

// pop takes the keyword argument name out.
func (a *args) pop(name string) (Value, bool) {
	for i := range a.kw {
		if a.kw[i].name == name {
			a.kw[i].name = ""
			return a.kw[i].v, true
		}
	}
	return Value{}, false
}

// left reports whether there is a keyword argument that nobody took. Its name may come
// from the request, so no message holds it.
func (a *args) left() bool {
	for i := range a.kw {
		if a.kw[i].name != "" {
			return true
		}
	}
	return false
}

// argList is how the arguments of a call, filter or test were written.
type argList struct {
	pos    []expr
	names  []string
	kw     []expr
	dynPos expr // *args
	dynKw  expr // **kwargs
}

func (l *argList) children(f func(expr)) {
	each(l.pos, f)
	each(l.kw, f)
	if l.dynPos != nil {
		f(l.dynPos)
	}
	if l.dynKw != nil {
		f(l.dynKw)
	}
}

// eval evaluates the arguments on the stack. The caller must cut the stack back to
// the length it had when it no longer needs them.
func (l *argList) eval(st *state) args {
	base := len(st.stack)
	for _, e := range l.pos {
		v := e.eval(st)
		st.stack = append(st.stack, v)
	}
	a := args{}
	if len(l.kw) > 0 {
		a.kw = make([]kwarg, len(l.kw), len(l.kw)+1)
		for i, e := range l.kw {
			a.kw[i] = kwarg{l.names[i], e.eval(st)}
		}
	}
	if l.dynPos != nil {
		st.stack = append(st.stack, st.collect(l.dynPos.eval(st))...)
	}
	if l.dynKw != nil {
		a.kw = st.addKeywords(a.kw, l.dynKw.eval(st))
	}
	a.pos = st.stack[base:len(st.stack):len(st.stack)]
	return a
}

func (st *state) addKeywords(kw []kwarg, v Value) []kwarg {
	if v.k != kDict {
		failf("argument after ** must be a mapping, not %s", v.typeName())
	}
	explicit := len(kw)
	for _, e := range v.dict().entries {
		if e.key.k != kString {
			fail("keywords must be strings")
		}
		for _, other := range kw[:explicit] {
			if other.name == e.key.str() {
				fail("got multiple values for a keyword argument")
			}
		}
		st.charge(1)
		kw = append(kw, kwarg{e.key.str(), e.val})
	}
	return kw
}

type callExpr struct {
	line int
	fn   expr
	args argList
}

func (e *callExpr) children(f func(expr)) {
	f(e.fn)
	e.args.children(f)
}

func (e *callExpr) eval(st *state) Value { return e.run(st, false, missing) }

func (e *callExpr) emit(st *state) { e.run(st, true, missing) }

// run evaluates the call. With emit the result is written, not returned. caller is
// the body of a call block, or missing.
func (e *callExpr) run(st *state, emit bool, caller Value) Value {
	base := len(st.stack)
	var fn, self Value
	var method methodFn
	if at, ok := e.fn.(*attrExpr); ok {
		self = at.e.eval(st)
		switch {
		case self.k == kString && at.onStr != nil:
			method = at.onStr
		case self.k == kDict && at.onDict != nil:
			method = at.onDict
		default:
			fn = st.attr(self, at.name)
		}
	} else {
		fn = e.fn.eval(st)
	}
	a := e.args.eval(st)
	if caller.k != kMissing {
		a.kw = append(a.kw, kwarg{"caller", caller})
	}
	var v Value
	switch {
	case method != nil:
		st.charge(1)
		v = method(st, self, a)
	case fn.k == kMacro && emit:
		st.callMacro(fn.macro(), a)
		v = String("")
	default:
		v = st.call(fn, a)
	}
	st.stack = st.stack[:base]
	if emit {
		if caller.k != kMissing && v.k != kString { // a call block joins without str()
			failf("expected str instance, %s found", v.typeName())
		}
		st.out = st.appendStr(st.out, v)
	}
	return v
}

// funcObj is a global function.
type funcObj struct {
	name string
	fn   func(st *state, a args) Value
}

func newFunc(name string, fn func(st *state, a args) Value) Value {
	return Value{k: kFunc, p: unsafe.Pointer(&funcObj{name, fn})}
}

// call calls any value.
func (st *state) call(fn Value, a args) Value {
	st.charge(1)
	switch fn.k {
	case kMacro:
		start := len(st.out)
		st.callMacro(fn.macro(), a)
		return String(st.takeOutput(start))
	case kMethod:
		m := (*methodObj)(fn.p)
		return m.fn(st, m.self, a)
	case kFunc:
		return (*funcObj)(fn.p).fn(st, a)
	case kLoop:
		return st.callLoop(fn.loop(), a)
	case kUndefined:
		failUndefined(fn)
	}
	failf("'%s' object is not callable", fn.typeName())
	return Value{}
}

// callLoop renders the body of a recursive loop for the items of its argument.
func (st *state) callLoop(l *loopObj, a args) Value {
	if l.def == nil || !l.def.recursive {
		fail("the loop must have the 'recursive' marker to be called recursively")
	}
	if len(a.pos) != 1 || len(a.kw) != 0 {
		fail("loop takes one argument")
	}
	start := len(st.out)
	st.recurse(l.def, a.pos[0], l.fr.up, l.depth0+1)
	return String(st.takeOutput(start))
}
