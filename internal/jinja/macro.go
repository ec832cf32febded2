package jinja

import "unsafe"

type param struct {
	name string
	def  expr // nil if it has no default
	ref  *nameExpr
}

// macroDef is a macro or the body of a call block.
type macroDef struct {
	line            int
	name            string
	params          []param
	body            []stmt
	sc              *scope
	fn              *function
	caller          *nameExpr // nil unless the body uses the special names
	kwargs, varargs *nameExpr
	usesCaller      bool
	ownCaller       bool // caller is one of params
	cost            int  // steps of evaluating the defaults
}

// macroObj is a macro with the variables it can see.
type macroObj struct {
	def *macroDef
	fr  *frame
}

func (v Value) macro() *macroObj { return (*macroObj)(v.p) }

func (st *state) newMacro(def *macroDef) Value {
	return Value{k: kMacro, p: unsafe.Pointer(&macroObj{def, st.fr})}
}

type macroStmt struct {
	def    *macroDef
	target *nameExpr
}

func (s *macroStmt) exec(st *state) ctl {
	st.assign(s.target, st.newMacro(s.def))
	return ctlNext
}

type callStmt struct {
	line int
	def  *macroDef
	call *callExpr
}

func (s *callStmt) exec(st *state) ctl {
	st.line = s.line
	s.call.run(st, true, st.newMacro(s.def))
	st.checkOutput()
	return ctlNext
}

// callMacro runs a macro. Its text stays at the end of the output.
func (st *state) callMacro(m *macroObj, a args) {
	st.push()
	back, line := st.fr, st.line
	st.fr = st.newFrame(m.def.fn.slots, m.fr)
	m.def.bind(st, a)
	m.def.sc.enter(st)
	m.def.setDefaults(st)
	st.exec(m.def.body)
	st.checkOutput()
	if !m.def.fn.hasInner {
		st.release(st.fr)
	}
	st.fr, st.line = back, line
	st.depth--
}

// bind stores the arguments of a call in the macro's frame, by the rules of jinja2's
// Macro.__call__.
func (m *macroDef) bind(st *state, a args) {
	st.charge(m.cost + len(m.params)*len(a.kw)/64)
	n := min(len(a.pos), len(m.params))
	for i := range n {
		st.assign(m.params[i].ref, a.pos[i])
	}
	foundCaller := n == len(m.params) && m.ownCaller
	for _, p := range m.params[n:] {
		if v, ok := a.pop(p.name); ok {
			st.assign(p.ref, v)
		}
		foundCaller = foundCaller || p.name == "caller"
	}
	if m.usesCaller && !foundCaller {
		v, ok := a.pop("caller")
		if !ok || v.k == kNone {
			v = undefined("caller")
		}
		if m.caller != nil {
			st.assign(m.caller, v)
		}
	}
	switch {
	case m.kwargs != nil:
		d := NewDict(len(a.kw))
		for _, kw := range a.kw {
			if kw.name != "" {
				d.Set(kw.name, kw.v)
			}
		}
		st.assign(m.kwargs, d.Value())
	default:
		if a.left() {
			failf("macro '%s' takes no keyword argument of that name", m.name)
		}
	}
	switch {
	case m.varargs != nil:
		rest := a.pos[n:]
		items := st.newValues(len(rest))
		copy(items, rest)
		st.assign(m.varargs, tuple(items))
	case len(a.pos) > n:
		failf("macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
	}
}

func (m *macroDef) setDefaults(st *state) {
	for i := range m.params {
		p := &m.params[i]
		if st.fr.slots[p.ref.slot].k != kMissing {
			continue
		}
		v := undefined(p.name)
		if p.def != nil {
			v = p.def.eval(st)
		}
		st.assign(p.ref, v)
	}
}
