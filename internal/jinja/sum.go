package jinja

import "unsafe"

// sumExpr is a + b + c, evaluated from the left. A sum of strings, the most common
// expression of chat templates, is written or built once.
type sumExpr struct{ parts []expr }

func (e *sumExpr) children(f func(expr)) { each(e.parts, f) }

func plain(v Value) bool { return v.k == kString && v.sub == 0 }

func (e *sumExpr) eval(st *state) Value {
	v := e.parts[0].eval(st)
	if !plain(v) || len(e.parts) == 2 {
		return st.addRest(v, e.parts[1:])
	}
	base, size := len(st.stack), int(v.n)
	st.stack = append(st.stack, v)
	for i, part := range e.parts[1:] {
		w := part.eval(st)
		if !plain(w) {
			v = String(st.joinFrom(base, size))
			return st.addRest(st.add(v, w), e.parts[i+2:])
		}
		st.stack = append(st.stack, w)
		size += int(w.n)
	}
	return String(st.joinFrom(base, size))
}

// joinFrom takes the strings above base off the stack and joins them.
func (st *state) joinFrom(base, size int) string {
	room := st.newText(size)
	n := 0
	for _, v := range st.stack[base:] {
		n += copy(room[n:], v.str())
	}
	st.stack = st.stack[:base]
	return unsafe.String(unsafe.SliceData(room), size)
}

func (st *state) addRest(v Value, parts []expr) Value {
	for _, part := range parts {
		v = st.add(v, part.eval(st))
	}
	return v
}

func (e *sumExpr) emit(st *state) {
	start := len(st.out)
	v := e.parts[0].eval(st)
	if !plain(v) {
		v = st.addRest(v, e.parts[1:])
		st.out = st.appendStr(st.out, v)
		return
	}
	st.out = append(st.out, v.str()...)
	for i, part := range e.parts[1:] {
		w := part.eval(st)
		if !plain(w) {
			v = String(st.takeOutput(start))
			v = st.addRest(st.add(v, w), e.parts[i+2:])
			st.out = st.appendStr(st.out, v)
			return
		}
		st.out = append(st.out, w.str()...)
		st.checkOutput()
	}
}

// emit writes str(e).
func (st *state) emit(e expr) {
	switch e := e.(type) {
	case *sumExpr:
		e.emit(st)
	case *concatExpr:
		e.emit(st)
	case *condExpr:
		if truth(e.test.eval(st)) {
			st.emit(e.then)
		} else if e.orElse != nil {
			st.emit(e.orElse)
		}
	case *filterExpr:
		e.emit(st)
	case *callExpr:
		e.emit(st)
	default:
		st.out = st.appendStr(st.out, e.eval(st))
	}
	st.checkOutput()
}

func (st *state) add(a, b Value) Value {
	switch {
	case a.isNumber() && b.isNumber():
		return arith(opAdd, a, b)
	case a.k == kString && b.k == kString:
		if a.sub|b.sub == subMarkup {
			return markup(st.concat(st.escape(a), st.escape(b)))
		}
		return String(st.concat(a.str(), b.str()))
	case a.isSeq() && a.k == b.k:
		items := st.newValues(int(a.n + b.n))
		copy(items[copy(items, a.items()):], b.items())
		return sequence(a.k, items)
	case a.k == kString && b.k != kUndefined:
		failf("can only concatenate str (not \"%s\") to str", b.typeName())
	}
	badOperands(opAdd, a, b)
	return Value{}
}

// binary is a op b for every operator but +.
func (st *state) binary(op operator, a, b Value) Value {
	switch {
	case a.isNumber() && b.isNumber():
		return arith(op, a, b)
	case op == opMod && a.k == kString:
		return st.formatPercent(a, b)
	case op == opMul && b.isInt() && (a.k == kString || a.isSeq()):
		return st.repeat(a, b)
	case op == opMul && a.isInt() && (b.k == kString || b.isSeq()):
		return st.repeat(b, a)
	}
	badOperands(op, a, b)
	return Value{}
}

func (st *state) repeat(v, times Value) Value {
	if times.k == kBig || times.n > int64(st.maxOut) {
		if times.k != kBig && v.n == 0 {
			return v
		}
		if times.k == kBig && times.bigInt().Sign() > 0 {
			failLimit("repeated value is too long")
		}
	}
	n := int(max(times.n, 0))
	if times.k == kBig {
		n = 0
	}
	if n > 0 && int(v.n) > st.maxOut/n {
		failLimit("repeated value is too long")
	}
	if v.isSeq() {
		st.bound(24 * n * int(v.n))
		items := st.newValues(n * int(v.n))
		for i := 0; i < len(items); {
			i += copy(items[i:], v.items())
		}
		return sequence(v.k, items)
	}
	room := st.newText(n * int(v.n))
	for i := 0; i < len(room); {
		i += copy(room[i:], v.str())
	}
	s := String(unsafe.String(unsafe.SliceData(room), len(room)))
	s.sub = v.sub
	return s
}
