package jinja

import "slices"

// reads returns those of the names that body reads, in any scope inside it too, before
// it sets them: jinja2's find_undeclared.
func reads(body []stmt, names ...string) (found []string) {
	w := walker{}
	w.read = func(e *nameExpr) {
		if slices.Contains(names, e.name) && !slices.Contains(found, e.name) {
			found = append(found, e.name)
		}
	}
	names = slices.Clone(names)
	w.store = func(name string) {
		if i := slices.Index(names, name); i >= 0 {
			names = slices.Delete(names, i, i+1)
		}
	}
	w.stmts(body)
	return found
}

// loopEscapes reports whether body uses loop in any way but loop.attr and loop(...),
// so that it may outlive its statement.
func loopEscapes(body []stmt) bool {
	total, known := 0, 0
	w := walker{}
	isLoop := func(e expr) bool {
		n, ok := e.(*nameExpr)
		return ok && n.name == "loop"
	}
	w.read = func(e *nameExpr) {
		if e.name == "loop" {
			total++
		}
	}
	w.store = func(string) {}
	w.visit = func(e expr) {
		switch e := e.(type) {
		case *callExpr:
			if at, ok := e.fn.(*attrExpr); ok && isLoop(at.e) {
				return // counted as an attribute
			}
			if isLoop(e.fn) {
				known++
			}
		case *attrExpr:
			if isLoop(e.e) {
				known++
			}
		}
	}
	w.stmts(body)
	return total != known || hasMacro(body)
}

func hasMacro(body []stmt) bool {
	found := false
	w := walker{read: func(*nameExpr) {}, store: func(string) {}}
	w.macro = func() { found = true }
	w.stmts(body)
	return found
}

// walker visits all expressions of a body in the order of the source.
type walker struct {
	read  func(e *nameExpr)
	store func(name string)
	visit func(e expr) // may be nil
	macro func()       // may be nil
}

func (w *walker) stmts(body []stmt) {
	for _, s := range body {
		w.stmt(s)
	}
}

func (w *walker) stmt(s stmt) {
	switch s := s.(type) {
	case *printStmt:
		w.expr(s.e)
	case *setStmt:
		w.target(s.target)
		w.expr(s.e)
	case *ifStmt:
		for _, arm := range s.arms {
			w.expr(arm.test)
			w.stmts(arm.body)
		}
		w.stmts(s.orElse)
	case *forStmt:
		w.target(s.target)
		w.expr(s.iter)
		w.stmts(s.body)
		w.stmts(s.orElse)
		w.expr(s.test)
	case *captureStmt:
		w.target(s.target)
		w.expr(s.filter)
		w.stmts(s.body)
	case *scopeStmt:
		for _, t := range s.targets {
			w.target(t)
		}
		each(s.values, w.expr)
		w.stmts(s.body)
	case *macroStmt:
		w.def(s.def)
	case *callStmt:
		w.expr(s.call)
		w.def(s.def)
	}
}

func (w *walker) def(m *macroDef) {
	if w.macro != nil {
		w.macro()
	}
	for _, p := range m.params {
		w.store(p.name)
	}
	for _, p := range m.params {
		w.expr(p.def)
	}
	w.stmts(m.body)
}

func (w *walker) target(e expr) {
	switch e := e.(type) {
	case *nameExpr:
		w.store(e.name)
	case *tupleExpr:
		for _, item := range e.items {
			w.target(item)
		}
	}
}

func (w *walker) expr(e expr) {
	switch e := e.(type) {
	case nil:
		return
	case *nameExpr:
		w.read(e)
		return
	}
	if w.visit != nil {
		w.visit(e)
	}
	e.children(w.expr)
}
