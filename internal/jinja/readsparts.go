package jinja

// ReadsParts tells whether the template takes a message's content for a list of parts: it
// loops over the content of an item of messages. Engines then hand over such a list, else
// one string (vLLM's content format "openai" and "string",
// vllm/entrypoints/chat_utils.py).
func (t *Template) ReadsParts() bool { return t.readsParts }

// readsParts looks for the loop in the tree before names are bound.
func readsParts(body []stmt) bool {
	var sets []*setStmt
	var loops []*forStmt
	walk(body, func(s stmt) {
		switch s := s.(type) {
		case *setStmt:
			sets = append(sets, s)
		case *forStmt:
			loops = append(loops, s)
		}
	})
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ { // and what is set to them
		for _, s := range sets {
			if !readsName(s.e, lists[i]) {
				continue
			}
			target, ok := s.target.(*nameExpr)
			if !ok {
				return false // as vLLM gives up on it
			}
			if !contains(lists, target.name) {
				lists = append(lists, target.name)
			}
		}
	}
	var items []string
	for _, l := range loops {
		if target, ok := l.target.(*nameExpr); ok && readsAny(l.iter, lists) {
			items = append(items, target.name)
		}
	}
	for _, l := range loops {
		for _, item := range items {
			if readsContent(l.iter, item) {
				return true
			}
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

func readsName(e expr, name string) bool {
	n, ok := bare(e).(*nameExpr)
	return ok && n.name == name
}

func readsAny(e expr, names []string) bool {
	n, ok := bare(e).(*nameExpr)
	return ok && contains(names, n.name)
}

// readsContent tells whether e is item.content or item['content'].
func readsContent(e expr, item string) bool {
	switch x := bare(e).(type) {
	case *attrExpr:
		return x.name == "content" && readsName(x.e, item)
	case *itemExpr:
		key, ok := x.key.(*constExpr)
		return ok && key.v.k == kString && key.v.str() == "content" && readsName(x.e, item)
	}
	return false
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
