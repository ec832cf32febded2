package jinja

import "unsafe"

// loopObj is the `loop` of a for statement, jinja2's LoopContext.
type loopObj struct {
	it      iter
	src     Value // what is iterated over
	def     *forStmt
	fr      *frame // where a recursive loop's surroundings live
	total   int    // -1 until it is known
	index0  int
	depth0  int
	cur     Value
	prev    Value
	after   Value // one item read ahead
	ahead   bool
	changed Value // arguments of the last call of changed
}

func (v Value) loop() *loopObj { return (*loopObj)(v.p) }

func (l *loopObj) value() Value { return Value{k: kLoop, p: unsafe.Pointer(l)} }

// newLoop returns a loop that a Render used before, if there is one.
func (st *state) newLoop() *loopObj {
	if n := len(st.loops) - 1; n >= 0 {
		l := st.loops[n]
		st.loops = st.loops[:n]
		return l
	}
	return new(loopObj)
}

func (st *state) freeLoop(l *loopObj) {
	*l = loopObj{}
	st.loops = append(st.loops, l)
}

// pull reads the next item of the sequence for which the loop's `if` holds.
func (l *loopObj) pull(st *state) (Value, bool) {
	if l.def.test == nil {
		return l.it.next(st)
	}
	back := st.fr // a macro may be asking for loop.last
	st.fr = l.fr
	defer func() { st.fr = back }()
	for {
		v, ok := l.it.next(st)
		if !ok {
			return v, ok
		}
		st.charge(l.def.testCost)
		st.assign(l.def.testTarget, v)
		if truth(l.def.test.eval(st)) {
			return v, true
		}
	}
}

// advance is __next__.
func (l *loopObj) advance(st *state) (Value, bool) {
	v, ok := l.after, l.ahead
	if ok {
		l.after, l.ahead = Value{}, false
	} else if v, ok = l.pull(st); !ok {
		return Value{}, false
	}
	l.index0++
	l.prev, l.cur = l.cur, v
	return v, true
}

// pairs is what the items of loop itself are in Python: (item, loop).
func (l *loopObj) pairs(st *state) (Value, bool) {
	v, ok := l.advance(st)
	if !ok {
		return v, false
	}
	pair := st.newValues(2)
	pair[0], pair[1] = v, l.value()
	return tuple(pair), true
}

func (l *loopObj) peek(st *state) (Value, bool) {
	if !l.ahead {
		l.after, l.ahead = l.pull(st)
	}
	return l.after, l.ahead
}

func (l *loopObj) length(st *state) int {
	if l.total >= 0 {
		return l.total
	}
	if n, ok := length(l.src); ok && l.def.test == nil {
		l.total = n
		return n
	}
	var rest []Value
	for {
		v, ok := l.pull(st)
		if !ok {
			break
		}
		rest = append(rest, v)
	}
	l.it = iter{v: generator(func(*state) (Value, bool) {
		if len(rest) == 0 {
			return Value{}, false
		}
		v := rest[0]
		rest = rest[1:]
		return v, true
	})}
	l.it.steps = (*iterObj)(l.it.v.p).next
	l.total = len(rest) + l.index0 + 1
	if l.ahead {
		l.total++
	}
	return l.total
}

// attr returns an attribute of loop; ok is false if there is none of that name.
func (l *loopObj) attr(st *state, name string) (v Value, ok bool) {
	switch name {
	case "index0":
		return Int(int64(l.index0)), true
	case "index":
		return Int(int64(l.index0) + 1), true
	case "first":
		return Bool(l.index0 == 0), true
	case "last":
		if l.it.seq != nil && l.def.test == nil && !l.ahead {
			return Bool(l.it.i >= len(l.it.seq)), true
		}
		_, more := l.peek(st)
		return Bool(!more), true
	case "length":
		return Int(int64(l.length(st))), true
	case "revindex":
		return Int(int64(l.length(st) - l.index0)), true
	case "revindex0":
		return Int(int64(l.length(st) - l.index0 - 1)), true
	case "previtem":
		if l.index0 == 0 {
			return undefined("previtem"), true
		}
		return l.prev, true
	case "nextitem":
		if v, ok := l.peek(st); ok {
			return v, true
		}
		return undefined("nextitem"), true
	case "depth":
		return Int(int64(l.depth0) + 1), true
	case "depth0":
		return Int(int64(l.depth0)), true
	case "cycle", "changed":
		return st.method(l.value(), name), true
	}
	return Value{}, false
}

func (l *loopObj) cycle(args []Value) Value {
	if len(args) == 0 {
		fail("no items for cycling given")
	}
	return args[l.index0%len(args)]
}

func (l *loopObj) hasChanged(st *state, args []Value) Value {
	if l.changed.k == kTuple && st.equal(l.changed, tuple(args)) {
		return Bool(false)
	}
	l.changed = tuple(append([]Value(nil), args...))
	return Bool(true)
}
