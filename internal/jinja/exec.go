package jinja

// ctl says how a statement ended.
type ctl uint8

const (
	ctlNext ctl = iota
	ctlBreak
	ctlContinue
)

// stmt is a node that writes or changes something.
type stmt interface {
	exec(st *state) ctl
}

func (st *state) exec(body []stmt) ctl {
	for _, s := range body {
		if c := s.exec(st); c != ctlNext {
			return c
		}
	}
	return ctlNext
}

type textStmt struct{ text string }

func (s *textStmt) exec(st *state) ctl {
	st.out = append(st.out, s.text...)
	st.checkOutput()
	return ctlNext
}

// costStmt counts the steps of running the body that it starts, whose expressions may
// be long.
type costStmt struct{ steps int }

func (s *costStmt) exec(st *state) ctl {
	st.charge(s.steps)
	return ctlNext
}

type printStmt struct {
	line int
	e    expr
}

func (s *printStmt) exec(st *state) ctl {
	st.line = s.line
	st.emit(s.e)
	return ctlNext
}

type jumpStmt struct {
	line int
	to   ctl
}

func (s *jumpStmt) exec(*state) ctl { return s.to }

type ifArm struct {
	line int
	test expr
	body []stmt
}

type ifStmt struct {
	arms   []ifArm
	orElse []stmt
}

func (s *ifStmt) exec(st *state) ctl {
	for i := range s.arms {
		arm := &s.arms[i]
		st.line = arm.line
		if truth(arm.test.eval(st)) {
			return st.exec(arm.body)
		}
	}
	return st.exec(s.orElse)
}

type setStmt struct {
	line   int
	target expr
	e      expr
}

func (s *setStmt) exec(st *state) ctl {
	st.line = s.line
	st.assign(s.target, s.e.eval(st))
	return ctlNext
}

// assign stores v in a target, taking it apart for a tuple.
func (st *state) assign(target expr, v Value) {
	switch t := target.(type) {
	case *nameExpr:
		if t.place == inFrame {
			st.fr.slots[t.slot] = v
			return
		}
		st.frameAt(t.hops).slots[t.slot] = v
	case *nsRef:
		ns := t.name.eval(st)
		if ns.k != kNamespace {
			fail("cannot assign attribute on non-namespace object")
		}
		setNamespace(ns.dict(), String(t.attr), v)
	case *tupleExpr:
		st.unpack(t.items, v)
	}
}

func (st *state) unpack(targets []expr, v Value) {
	if v.isSeq() {
		st.checkUnpack(int(v.n), len(targets))
		for i, item := range v.items() {
			st.assign(targets[i], item)
		}
		return
	}
	it := st.iterate(v)
	n := 0
	for {
		item, ok := it.next(st)
		if !ok {
			st.checkUnpack(n, len(targets))
			return
		}
		if n == len(targets) {
			st.checkUnpack(n+1, n)
		}
		st.assign(targets[n], item)
		n++
	}
}

func (st *state) checkUnpack(got, want int) {
	if got < want {
		failf("not enough values to unpack (expected %d, got %d)", want, got)
	}
	if got > want {
		failf("too many values to unpack (expected %d)", want)
	}
}

// captureStmt is a set block (with a target) or a filter block (without).
type captureStmt struct {
	line   int
	target expr
	filter expr // nil, or a chain of filters whose first one has no operand
	body   []stmt
	sc     *scope
}

func (s *captureStmt) exec(st *state) ctl {
	start := len(st.out)
	s.sc.enter(st)
	c := st.exec(s.body)
	st.line = s.line
	text := st.takeOutput(start)
	if c != ctlNext {
		return c // the text is lost, as in Python
	}
	v := String(text)
	if s.filter != nil {
		st.captured = v
		v = s.filter.eval(st)
	}
	switch {
	case s.target != nil:
		st.assign(s.target, v)
	case v.k != kString: // Python joins the pieces of text without str()
		failf("expected str instance, %s found", v.typeName())
	default:
		st.out = append(st.out, v.str()...)
		st.checkOutput()
	}
	s.sc.leave(st)
	return ctlNext
}

// capturedExpr is the text of the block that a chain of filters stands for.
type capturedExpr struct{}

func (capturedExpr) eval(st *state) Value { return st.captured }
func (capturedExpr) children(func(expr))  {}

// scopeStmt is a with block or, special, a generation block.
type scopeStmt struct {
	line    int
	targets []expr
	values  []expr
	body    []stmt
	sc      *scope
	special bool // caller, varargs and kwargs are those of a macro without arguments
	params  []*nameExpr
}

func (s *scopeStmt) exec(st *state) ctl {
	st.line = s.line
	s.sc.enter(st)
	for i, target := range s.targets {
		st.assign(target, s.values[i].eval(st))
	}
	for _, p := range s.params {
		st.assign(p, noArguments(p.name))
	}
	c := st.exec(s.body)
	s.sc.leave(st)
	return c
}

func noArguments(name string) Value {
	switch name {
	case "varargs":
		return tuple(nil)
	case "kwargs":
		return NewDict(0).Value()
	}
	return undefined(name)
}

// forStmt is a loop. loop is nil if no one can see the loop variable.
type forStmt struct {
	line       int
	target     expr
	iter       expr
	test       expr
	testTarget expr // target, in the variables that test sees
	testCost   int  // steps of evaluating test
	body       []stmt
	orElse     []stmt
	hasElse    bool
	recursive  bool
	loop       *nameExpr
	escapes    bool // loop may be used after its end
	sc, elseSc *scope
	fn         *function // of a recursive loop
}

func (s *forStmt) exec(st *state) ctl {
	st.line = s.line
	v := s.iter.eval(st)
	if s.recursive {
		st.recurse(s, v, st.fr, 0)
		return ctlNext
	}
	return s.run(st, v, 0)
}

// recurse runs a recursive loop at a depth, in a frame of its own.
func (st *state) recurse(s *forStmt, v Value, outer *frame, depth int) {
	st.push()
	back := st.fr
	st.fr = st.newFrame(s.fn.slots, outer)
	s.run(st, v, depth)
	if !s.fn.hasInner && !s.escapes {
		st.release(st.fr)
	}
	st.fr = back
	st.depth--
}

// push counts a nested call.
func (st *state) push() {
	st.charge(1)
	if st.depth++; st.depth > st.maxDepth {
		failLimit("maximum recursion depth exceeded")
	}
}

func (s *forStmt) run(st *state, v Value, depth int) ctl {
	if s.loop == nil && s.test == nil && v.isSeq() {
		return s.runList(st, v.items())
	}
	l := st.newLoop()
	l.it, l.src, l.def, l.index0, l.total, l.depth0 = st.iterate(v), v, s, -1, -1, depth
	l.fr = st.fr
	done := false
	for {
		item, ok := l.advance(st)
		if !ok {
			break
		}
		if s.loop != nil {
			st.assign(s.loop, l.value())
		}
		c := s.round(st, item)
		done = done || c == ctlNext
		if c == ctlBreak {
			break
		}
	}
	if !s.escapes {
		st.freeLoop(l)
	}
	return s.finish(st, done)
}

func (s *forStmt) runList(st *state, items []Value) ctl {
	done := false
	for i := range items {
		c := s.round(st, items[i])
		done = done || c == ctlNext
		if c == ctlBreak {
			break
		}
	}
	return s.finish(st, done)
}

func (s *forStmt) round(st *state, item Value) ctl {
	st.charge(1)
	st.assign(s.target, item)
	s.sc.enter(st)
	return st.exec(s.body)
}

// finish runs the else block unless a round came to its end. A round that ended with
// break or continue does not count, as in the code that jinja2 generates.
func (s *forStmt) finish(st *state, done bool) ctl {
	s.sc.leave(st)
	if !s.hasElse || done {
		return ctlNext
	}
	s.elseSc.enter(st)
	c := st.exec(s.orElse)
	s.elseSc.leave(st)
	return c
}
