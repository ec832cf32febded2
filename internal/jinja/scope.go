package jinja

// Names become slots by the rules of jinja2's idtracking.py, which decide what a `set`
// inside a for, an if, a macro or a block can be seen by. Each scope holds the names
// that are read or set in it. When the scope is entered, a name that it sets starts
// as a copy of the same name outside, as the variable of the request, or unset; so a
// `set` in a loop is forgotten each round, and one in an if is not.

// function is what has a frame of its own: the template, a macro, a recursive loop.
type function struct {
	up       *function
	slots    int
	hasInner bool // macros inside may keep the frame
}

// Ways in which a variable starts.
const (
	startUnset   = iota
	startParam   // set by the statement that opens the scope
	startContext // the variable of the request or a global
	startAlias   // the variable of the same name outside
)

type variable struct {
	start uint8
	from  *variable // startAlias
	fn    *function
	slot  int // -1: it is never set, so it is read from the context
	ctx   int
}

type scope struct {
	parent *scope
	fn     *function
	comp   *compiler
	vars   map[string]*variable // all there ever were, also in branches that ended
	refs   map[string]*variable // those that are known at this point
	stores map[string]bool
	log    []change
	lo, hi int // slots
	loads  []load
}

// change is an entry of scope.refs or scope.stores that a branch of an if added.
type change struct {
	name  string
	v     *variable
	start uint8
	from  *variable
	store bool
}

// load fills a slot when the scope is entered.
type load struct {
	slot int
	ref  nameExpr
	set  bool // else it is unset
}

func (s *scope) find(name string) *variable {
	for ; s != nil; s = s.parent {
		if v := s.refs[name]; v != nil {
			return v
		}
	}
	return nil
}

func (s *scope) define(name string, start uint8, from *variable) {
	v := s.vars[name]
	if v == nil {
		v = &variable{fn: s.fn}
		s.vars[name] = v
	}
	v.start, v.from = start, from
	s.refs[name] = v
	s.log = append(s.log, change{name: name, v: v, start: start, from: from})
}

func (s *scope) read(name string) {
	if s.find(name) == nil {
		s.define(name, startContext, nil)
	}
}

func (s *scope) markStored(name string) {
	if !s.stores[name] {
		s.stores[name] = true
		s.log = append(s.log, change{name: name, store: true})
	}
}

func (s *scope) store(name string) {
	s.markStored(name)
	if s.refs[name] != nil {
		return
	}
	if outer := s.parent.find(name); outer != nil {
		s.define(name, startAlias, outer)
	} else {
		s.define(name, startUnset, nil)
	}
}

func (s *scope) param(name string) {
	s.markStored(name)
	s.define(name, startParam, nil)
}

// branch analyses one arm of an if on its own, takes its changes back and returns
// them.
func (s *scope) branch(body func()) []change {
	mark := len(s.log)
	body()
	changes := append([]change(nil), s.log[mark:]...)
	s.log = s.log[:mark]
	for _, c := range changes {
		if c.store {
			delete(s.stores, c.name)
		} else {
			delete(s.refs, c.name)
		}
	}
	return changes
}

// merge applies the changes of the arms of an if. What an arm sets may stay unset, so
// such a name starts with what it is outside.
func (s *scope) merge(arms ...[]change) {
	var stored []string
	for _, arm := range arms {
		for _, c := range arm {
			switch {
			case !c.store:
				s.define(c.name, c.start, c.from)
			case !s.stores[c.name]:
				stored = append(stored, c.name)
				s.markStored(c.name)
			}
		}
	}
	for _, name := range stored {
		v := s.find(name)
		if outer := s.parent.find(name); outer != nil {
			v.start, v.from = startAlias, outer
		} else {
			v.start, v.from = startContext, nil
		}
		s.log = append(s.log, change{name: name, v: v, start: v.start, from: v.from})
	}
}

// scanExpr notes the names that e reads.
func (s *scope) scanExpr(e expr) {
	switch e := e.(type) {
	case nil:
	case *nameExpr:
		s.read(e.name)
	case *nsRef:
		s.read(e.name.name)
	default:
		e.children(s.scanExpr)
	}
}

// scanTarget notes the names that are set by assigning to e.
func (s *scope) scanTarget(e expr, note func(name string)) {
	switch e := e.(type) {
	case *nameExpr:
		note(e.name)
	case *nsRef:
		s.read(e.name.name)
	case *tupleExpr:
		for _, item := range e.items {
			s.scanTarget(item, note)
		}
	}
}

func (s *scope) scan(body []stmt) {
	for _, st := range body {
		s.scanStmt(st)
	}
}

// scanStmt notes the names of one statement, without those of scopes inside it.
func (s *scope) scanStmt(st stmt) {
	switch st := st.(type) {
	case *printStmt:
		s.scanExpr(st.e)
	case *ifStmt:
		s.scanIf(st.arms, st.orElse)
	case *setStmt:
		s.scanExpr(st.e)
		s.scanTarget(st.target, s.store)
	case *captureStmt:
		if st.target != nil {
			s.scanTarget(st.target, s.store)
		} else {
			s.scanExpr(st.filter)
		}
	case *macroStmt:
		s.store(st.def.name)
	case *callStmt:
		s.scanExpr(st.call)
	case *scopeStmt:
		each(st.values, s.scanExpr)
	case *forStmt:
		s.scanExpr(st.iter)
	}
}

// scanIf treats the tests of elifs as part of their own arms.
func (s *scope) scanIf(arms []ifArm, orElse []stmt) {
	s.scanExpr(arms[0].test)
	changes := [][]change{s.branch(func() { s.scan(arms[0].body) })}
	changes = append(changes, s.branch(func() {
		for _, arm := range arms[1:] {
			s.scanIf([]ifArm{arm}, nil)
		}
	}))
	changes = append(changes, s.branch(func() { s.scan(orElse) }))
	s.merge(changes...)
}

// close gives slots to the names of the scope once all of them are known.
func (s *scope) close() {
	s.lo = s.fn.slots
	for _, c := range s.log { // in the order of the source
		v := c.v
		if v == nil || s.refs[c.name] != v || v.slot != 0 {
			continue
		}
		if v.start == startContext && !s.stores[c.name] {
			v.slot, v.ctx = -1, s.comp.context(c.name)
			continue
		}
		s.fn.slots++
		v.slot = s.fn.slots
		s.addLoad(c.name, v)
	}
	s.hi = s.fn.slots
}

func (s *scope) addLoad(name string, v *variable) {
	l := load{slot: v.slot - 1, ref: nameExpr{name: name}}
	switch v.start {
	case startParam:
		return
	case startContext:
		l.set = true
		l.ref.slot = s.comp.context(name)
	case startAlias:
		l.set = true
		s.place(&l.ref, v.from)
	}
	s.loads = append(s.loads, l)
}

// place writes into e where v is found from s.
func (s *scope) place(e *nameExpr, v *variable) {
	if v.slot < 0 {
		e.place, e.slot = inContext, v.ctx
		return
	}
	e.place, e.slot = inFrame, v.slot-1
	for fn := s.fn; fn != v.fn; fn = fn.up {
		e.place = inOuter
		e.hops++
	}
}

// enter prepares the variables of the scope.
func (s *scope) enter(st *state) {
	for i := range s.loads {
		l := &s.loads[i]
		v := missing
		if l.set {
			switch l.ref.place {
			case inContext:
				v = st.ctx[l.ref.slot]
			case inFrame:
				v = st.fr.slots[l.ref.slot]
			default:
				v = st.frameAt(l.ref.hops).slots[l.ref.slot]
			}
		}
		st.fr.slots[l.slot] = v
	}
}

// leave unsets the variables, which matters only to macros that can still see them.
func (s *scope) leave(st *state) {
	if !s.fn.hasInner {
		return
	}
	for i := s.lo; i < s.hi; i++ {
		st.fr.slots[i] = missing
	}
}
