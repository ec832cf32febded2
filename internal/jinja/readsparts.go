package jinja

// ReadsParts tells whether the template takes a message's content for a list of parts: it
// loops over the content of an item of messages. Engines then hand over such a list, else
// one string (vLLM's content format "openai" and "string",
// vllm/entrypoints/chat_utils.py).
func (t *Template) ReadsParts() bool { return t.readsParts }

// readsParts looks for the loop in the tree before names are bound.
func readsParts(body []stmt) bool {
	sets := map[string][]*setStmt{} // by the name that they read
	var loops []*forStmt
	walk(body, func(s stmt) {
		switch s := s.(type) {
		case *setStmt:
			if name := bareName(s.e); name != "" {
				sets[name] = append(sets[name], s)
			}
		case *forStmt:
			loops = append(loops, s)
		}
	})
	isList := map[string]bool{"messages": true}
	for todo := []string{"messages"}; len(todo) > 0; todo = todo[1:] { // and what is set to them
		for _, s := range sets[todo[0]] {
			target, ok := s.target.(*nameExpr)
			if !ok {
				return false // as vLLM gives up on it
			}
			if !isList[target.name] {
				isList[target.name] = true
				todo = append(todo, target.name)
			}
		}
	}
	isItem := map[string]bool{}
	for _, l := range loops {
		if target, ok := l.target.(*nameExpr); ok && isList[bareName(l.iter)] {
			isItem[target.name] = true
		}
	}
	for _, l := range loops {
		if isItem[contentOf(l.iter)] {
			return true
		}
	}
	return false
}

// walk calls f with each statement of the tree.
func walk(body []stmt, f func(stmt)) {
	for _, s := range body {
		f(s)
		switch s := s.(type) {
		case *ifStmt:
			for i := range s.arms {
				walk(s.arms[i].body, f)
			}
			walk(s.orElse, f)
		case *captureStmt:
			walk(s.body, f)
		case *scopeStmt:
			walk(s.body, f)
		case *forStmt:
			walk(s.body, f)
			walk(s.orElse, f)
		case *macroStmt:
			walk(s.def.body, f)
		case *callStmt:
			walk(s.def.body, f)
		}
	}
}

// bare takes filters, tests and slices off an expression.
func bare(e expr) expr {
	for {
		switch x := e.(type) {
		case *filterExpr:
			e = x.e
		case *testExpr:
			e = x.e
		case *sliceExpr:
			e = x.e
		default:
			return e
		}
	}
}

// bareName returns the name that e is, or "".
func bareName(e expr) string {
	if n, ok := bare(e).(*nameExpr); ok {
		return n.name
	}
	return ""
}

// contentOf returns the name of item where e is item.content or item['content'], or "".
func contentOf(e expr) string {
	switch x := bare(e).(type) {
	case *attrExpr:
		if x.name == "content" {
			return bareName(x.e)
		}
	case *itemExpr:
		if key, ok := x.key.(*constExpr); ok && key.v.k == kString && key.v.str() == "content" {
			return bareName(x.e)
		}
	}
	return ""
}
