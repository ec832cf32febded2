package jinja

// expr is a node that has a value. children calls f for the expressions right below
// it, in the order in which they are evaluated.
type expr interface {
	eval(st *state) Value
	children(f func(expr))
}

type constExpr struct{ v Value }

func (e *constExpr) eval(*state) Value   { return e.v }
func (e *constExpr) children(func(expr)) {}

// Places of variables.
const (
	inContext = iota // state.ctx[slot]: never set by the template
	inFrame          // the frame of the running function
	inOuter          // the frame hops functions further out
)

// nameExpr is a variable, or a target that is assigned to.
type nameExpr struct {
	name  string
	place uint8
	hops  int
	slot  int
}

func (e *nameExpr) eval(st *state) Value {
	var v Value
	switch e.place {
	case inContext:
		return st.ctx[e.slot]
	case inFrame:
		v = st.fr.slots[e.slot]
	default:
		v = st.frameAt(e.hops).slots[e.slot]
	}
	if v.k == kMissing {
		return undefined(e.name)
	}
	return v
}

func (e *nameExpr) children(func(expr)) {}

func (st *state) frameAt(hops int) *frame {
	f := st.fr
	for range hops {
		f = f.up
	}
	return f
}

// nsRef is name.attr as a target.
type nsRef struct {
	name nameExpr
	attr string
}

func (e *nsRef) eval(*state) Value     { panic("BUG: target evaluated") }
func (e *nsRef) children(f func(expr)) { f(&e.name) }

type tupleExpr struct{ items []expr }

func (e *tupleExpr) eval(st *state) Value { return tuple(evalAll(st, e.items)) }

func (e *tupleExpr) children(f func(expr)) { each(e.items, f) }

type listExpr struct{ items []expr }

func (e *listExpr) eval(st *state) Value { return List(evalAll(st, e.items)) }

func (e *listExpr) children(f func(expr)) { each(e.items, f) }

func each(items []expr, f func(expr)) {
	for _, item := range items {
		f(item)
	}
}

func evalAll(st *state, items []expr) []Value {
	values := st.newValues(len(items))
	for i, item := range items {
		values[i] = item.eval(st)
	}
	return values
}

type dictExpr struct{ keys, vals []expr }

func (e *dictExpr) eval(st *state) Value {
	st.charge(1 + len(e.keys)/8)
	d := NewDict(len(e.keys))
	for i, key := range e.keys {
		k := key.eval(st)
		st.setKey(d, k, e.vals[i].eval(st))
	}
	return d.Value()
}

func (e *dictExpr) children(f func(expr)) {
	for i := range e.keys {
		f(e.keys[i])
		f(e.vals[i])
	}
}

// condExpr is then if test else orElse; without an else it may be undefined.
type condExpr struct{ test, then, orElse expr }

func (e *condExpr) eval(st *state) Value {
	if truth(e.test.eval(st)) {
		return e.then.eval(st)
	}
	if e.orElse == nil {
		return Value{}
	}
	return e.orElse.eval(st)
}

func (e *condExpr) children(f func(expr)) {
	f(e.then)
	f(e.test)
	if e.orElse != nil {
		f(e.orElse)
	}
}

type logicExpr struct {
	a, b expr
	or   bool
}

func (e *logicExpr) eval(st *state) Value {
	v := e.a.eval(st)
	if truth(v) == e.or {
		return v
	}
	return e.b.eval(st)
}

func (e *logicExpr) children(f func(expr)) { f(e.a); f(e.b) }

type notExpr struct{ e expr }

func (e *notExpr) eval(st *state) Value  { return Bool(!truth(e.e.eval(st))) }
func (e *notExpr) children(f func(expr)) { f(e.e) }

type negExpr struct {
	e     expr
	minus bool
}

// newNeg folds the sign of a literal into it.
func newNeg(e expr, minus bool) expr {
	n := &negExpr{e: e, minus: minus}
	if c, ok := e.(*constExpr); ok && c.v.isNumber() {
		return &constExpr{n.eval(nil)}
	}
	return n
}

func (e *negExpr) eval(st *state) Value {
	v := e.e.eval(st)
	switch {
	case v.k == kUndefined:
		failUndefined(v)
	case !v.isNumber():
		failf("bad operand type for unary operator: '%s'", v.typeName())
	case v.k == kFloat && e.minus:
		return Float(-v.float())
	case e.minus:
		return arith(opSub, Int(0), v)
	}
	return plainInt(v)
}

func (e *negExpr) children(f func(expr)) { f(e.e) }

type binaryExpr struct {
	op   operator
	a, b expr
}

func (e *binaryExpr) eval(st *state) Value {
	a := e.a.eval(st)
	return st.binary(e.op, a, e.b.eval(st))
}

func (e *binaryExpr) children(f func(expr)) { f(e.a); f(e.b) }

type compareOp uint8

const (
	cmpEq compareOp = iota + 1
	cmpNe
	cmpLt
	cmpLe
	cmpGt
	cmpGe
	cmpIn
	cmpNotIn
)

// compareExpr is a chain of comparisons: a < b <= c is a < b and b <= c.
type compareExpr struct {
	first expr
	ops   []compareOp
	rest  []expr
}

func (e *compareExpr) eval(st *state) Value {
	a := e.first.eval(st)
	for i, op := range e.ops {
		b := e.rest[i].eval(st)
		if !st.compare(op, a, b) {
			return Bool(false)
		}
		a = b
	}
	return Bool(true)
}

func (e *compareExpr) children(f func(expr)) {
	f(e.first)
	each(e.rest, f)
}

func (st *state) compare(op compareOp, a, b Value) bool {
	switch op {
	case cmpEq:
		return st.equal(a, b)
	case cmpNe:
		return !st.equal(a, b)
	case cmpLt:
		return st.order(a, b, "<") == -1
	case cmpLe:
		c := st.order(a, b, "<=")
		return c == -1 || c == 0
	case cmpGt:
		return st.order(a, b, ">") == 1
	case cmpGe:
		c := st.order(a, b, ">=")
		return c == 1 || c == 0
	case cmpIn:
		return st.contains(b, a)
	}
	return !st.contains(b, a)
}

// concatExpr is a ~ b ~ c.
type concatExpr struct{ parts []expr }

func (e *concatExpr) eval(st *state) Value {
	start := len(st.out)
	e.emit(st)
	return String(st.takeOutput(start))
}

func (e *concatExpr) children(f func(expr)) { each(e.parts, f) }

func (e *concatExpr) emit(st *state) {
	for _, part := range e.parts {
		st.emit(part)
	}
}

// takeOutput cuts off what was written since start and returns it.
func (st *state) takeOutput(start int) string {
	s := st.copyText(st.out[start:])
	st.out = st.out[:start]
	return s
}

// itemExpr is e[key].
type itemExpr struct{ e, key expr }

func (e *itemExpr) eval(st *state) Value {
	v := e.e.eval(st)
	return st.item(v, e.key.eval(st))
}

func (e *itemExpr) children(f func(expr)) { f(e.e); f(e.key) }

// sliceExpr is e[start:stop:step].
type sliceExpr struct{ e, start, stop, step expr }

func (e *sliceExpr) eval(st *state) Value {
	part := func(e expr) Value {
		if e == nil {
			return None()
		}
		return e.eval(st)
	}
	v := e.e.eval(st)
	start, stop := part(e.start), part(e.stop)
	return st.slice(v, start, stop, part(e.step))
}

func (e *sliceExpr) children(f func(expr)) {
	for _, c := range [...]expr{e.e, e.start, e.stop, e.step} {
		if c != nil {
			f(c)
		}
	}
}
