package jinja

// maxLoops bounds how deep loops may be nested. CPython refuses more than 20.
const maxLoops = 20

// compiler binds the names of a parsed template and checks what Python's compiler
// refuses.
type compiler struct {
	names  []string
	ctx    map[string]int
	loops  int  // loops around the current statement in its function
	anyFor int  // loops around it in all functions
	soft   bool // directly in an if, where unknown filters fail only when they run
}

func compile(body []stmt) *Template {
	c := &compiler{ctx: map[string]int{}}
	root := c.newScope(nil, &function{})
	root.scan(body)
	root.close()
	c.stmts(root, body)
	return &Template{body: body, root: root, names: c.names}
}

func (c *compiler) newScope(parent *scope, fn *function) *scope {
	return &scope{parent: parent, fn: fn, comp: c, vars: map[string]*variable{}, refs: map[string]*variable{}, stores: map[string]bool{}}
}

// context returns the slot of a name of the context.
func (c *compiler) context(name string) int {
	i, ok := c.ctx[name]
	if !ok {
		if name == "self" {
			c.fail(0, "self is not supported")
		}
		i = len(c.names)
		c.ctx[name] = i
		c.names = append(c.names, name)
	}
	return i
}

func (c *compiler) fail(line int, msg string) { panic(&Error{Line: line, Message: msg}) }

func (c *compiler) stmts(s *scope, body []stmt) {
	for _, st := range body {
		c.stmt(s, st)
	}
}

// inner compiles a body that has its own scope, outside of ifs.
func (c *compiler) inner(f func()) {
	soft := c.soft
	c.soft = false
	f()
	c.soft = soft
}

func (c *compiler) stmt(s *scope, st stmt) {
	switch st := st.(type) {
	case *printStmt:
		c.expr(s, st.line, st.e)
	case *setStmt:
		c.expr(s, st.line, st.e)
		c.target(s, st.line, st.target)
	case *ifStmt:
		c.ifStmt(s, st)
	case *forStmt:
		c.expr(s, st.line, st.iter)
		c.inner(func() { c.forStmt(s, st) })
	case *captureStmt:
		c.capture(s, st)
	case *scopeStmt:
		c.scopeStmt(s, st)
	case *macroStmt:
		c.macro(s, st.def)
		c.bind(s, st.target)
	case *callStmt:
		c.macro(s, st.def)
		c.expr(s, st.line, st.call)
	case *jumpStmt:
		if c.loops == 0 {
			c.fail(st.line, "break or continue outside of a loop")
		}
	}
}

func (c *compiler) ifStmt(s *scope, st *ifStmt) {
	soft := c.soft
	c.soft = true
	for i := range st.arms {
		c.expr(s, st.arms[i].line, st.arms[i].test)
		c.stmts(s, st.arms[i].body)
	}
	c.stmts(s, st.orElse)
	c.soft = soft
}

func (c *compiler) capture(s *scope, st *captureStmt) {
	st.sc = c.newScope(s, s.fn)
	if st.filter != nil {
		st.filter = attachCaptured(st.filter)
		st.sc.scanExpr(st.filter)
	}
	st.sc.scan(st.body)
	st.sc.close()
	c.inner(func() {
		c.stmts(st.sc, st.body)
		c.expr(st.sc, st.line, st.filter)
	})
	c.target(s, st.line, st.target)
}

// attachCaptured gives the first filter of a chain its operand.
func attachCaptured(e expr) expr {
	f, ok := e.(*filterExpr)
	if !ok {
		return capturedExpr{}
	}
	f.e = attachCaptured(f.e)
	return f
}

func (c *compiler) scopeStmt(s *scope, st *scopeStmt) {
	st.sc = c.newScope(s, s.fn)
	for _, target := range st.targets {
		st.sc.scanTarget(target, st.sc.param)
	}
	var special []string
	if st.special {
		special = reads(st.body, "caller", "kwargs", "varargs")
		for _, name := range special {
			st.sc.param(name)
		}
	}
	st.sc.scan(st.body)
	st.sc.close()
	for i, target := range st.targets {
		c.expr(s, st.line, st.values[i])
		c.target(st.sc, st.line, target)
	}
	for _, name := range special {
		p := &nameExpr{name: name}
		c.bind(st.sc, p)
		st.params = append(st.params, p)
	}
	loops := c.loops
	if st.special {
		c.loops = 0 // the body is a function in Python
	}
	c.inner(func() { c.stmts(st.sc, st.body) })
	c.loops = loops
}

func (c *compiler) forStmt(s *scope, st *forStmt) {
	fn := s.fn
	if st.recursive {
		fn = &function{up: s.fn}
		st.fn = fn
	}
	st.sc = c.newScope(s, fn)
	if uses := reads(st.body, "loop"); st.recursive || len(uses) > 0 {
		st.sc.param("loop")
		st.loop = &nameExpr{name: "loop"}
		st.escapes = loopEscapes(st.body)
	}
	st.sc.scanTarget(st.target, st.sc.param)
	st.sc.scan(st.body)
	st.sc.close()
	if st.loop != nil {
		c.bind(st.sc, st.loop)
	}
	if c.anyFor++; c.anyFor > maxLoops {
		c.fail(st.line, "too many nested loops")
	}
	c.forTest(s, fn, st)
	c.target(st.sc, st.line, st.target)
	loops := c.loops
	c.loops++
	c.stmts(st.sc, st.body)
	c.loops = loops
	st.elseSc = c.newScope(s, fn)
	st.elseSc.scan(st.orElse)
	st.elseSc.close()
	if st.recursive {
		c.loops = 0
	}
	c.stmts(st.elseSc, st.orElse)
	c.loops = loops
	c.anyFor--
	if st.recursive {
		s.fn.hasInner = s.fn.hasInner || fn.hasInner
	}
}

// forTest compiles the if of a for, which has variables of its own.
func (c *compiler) forTest(s *scope, fn *function, st *forStmt) {
	if st.test == nil {
		return
	}
	sc := c.newScope(s, fn)
	sc.scanTarget(st.target, sc.param)
	sc.scanExpr(st.test)
	sc.close()
	st.testTarget = cloneTarget(st.target)
	c.target(sc, st.line, st.testTarget)
	c.expr(sc, st.line, st.test)
}

func cloneTarget(e expr) expr {
	switch e := e.(type) {
	case *nameExpr:
		return &nameExpr{name: e.name}
	case *tupleExpr:
		t := &tupleExpr{items: make([]expr, len(e.items))}
		for i, item := range e.items {
			t.items[i] = cloneTarget(item)
		}
		return t
	}
	return e
}

func (c *compiler) macro(s *scope, m *macroDef) {
	m.fn = &function{up: s.fn}
	s.fn.hasInner = true
	m.sc = c.newScope(s, m.fn)
	for _, p := range m.params {
		m.sc.param(p.name)
		m.ownCaller = m.ownCaller || p.name == "caller"
	}
	for _, p := range m.params {
		m.sc.scanExpr(p.def)
	}
	special := c.specials(m)
	m.sc.scan(m.body)
	m.sc.close()
	for i := range m.params {
		p := &m.params[i]
		p.ref = &nameExpr{name: p.name}
		c.bind(m.sc, p.ref)
	}
	for _, ref := range special {
		c.bind(m.sc, ref)
	}
	loops := c.loops
	c.loops = 0
	c.inner(func() {
		for i := range m.params {
			c.expr(m.sc, m.line, m.params[i].def)
		}
		c.stmts(m.sc, m.body)
	})
	c.loops = loops
}

// specials declares those of caller, kwargs and varargs that the body reads.
func (c *compiler) specials(m *macroDef) (refs []*nameExpr) {
	for _, name := range reads(m.body, "caller", "kwargs", "varargs") {
		isParam := false
		for _, p := range m.params {
			if p.name == name {
				isParam = true
				if name == "caller" && p.def == nil {
					c.fail(m.line, "the special caller argument must be given a default")
				}
			}
		}
		m.usesCaller = m.usesCaller || name == "caller"
		if isParam {
			continue
		}
		ref := &nameExpr{name: name}
		switch name {
		case "caller":
			m.caller = ref
		case "kwargs":
			m.kwargs = ref
		case "varargs":
			m.varargs = ref
		}
		m.sc.param(name)
		refs = append(refs, ref)
	}
	return refs
}

// bind finds the slot of a name.
func (c *compiler) bind(s *scope, e *nameExpr) {
	v := s.find(e.name)
	if v == nil {
		s.read(e.name) // names in places that the scan does not visit
		v = s.refs[e.name]
	}
	if v.slot == 0 {
		v.slot, v.ctx = -1, c.context(e.name)
	}
	s.place(e, v)
}

func (c *compiler) target(s *scope, line int, e expr) {
	switch e := e.(type) {
	case *nameExpr:
		if e.name == "loop" && c.anyFor > 0 {
			c.fail(line, "cannot assign to the special loop variable")
		}
		c.bind(s, e)
	case *nsRef:
		c.bind(s, &e.name)
	case *tupleExpr:
		for _, item := range e.items {
			c.target(s, line, item)
		}
	}
}

// expr binds the names in e and looks filters and tests up.
func (c *compiler) expr(s *scope, line int, e expr) {
	switch e := e.(type) {
	case nil:
		return
	case *nameExpr:
		c.bind(s, e)
		return
	case *filterExpr:
		e.resolve(c)
	case *testExpr:
		e.resolve(c)
	case *condExpr:
		soft := c.soft
		c.soft = true
		defer func() { c.soft = soft }()
	}
	e.children(func(child expr) { c.expr(s, line, child) })
}
