package jinja

// callArgs parses the arguments of a call in brackets.
func (p *parser) callArgs() (a argList) {
	p.expectOp("(")
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.isOp(")") {
				break
			}
		}
		p.callArg(&a)
	}
	p.expectOp(")")
	return a
}

func (p *parser) callArg(a *argList) {
	ok := true
	switch {
	case p.skipOp("*"):
		ok = a.dynPos == nil && a.dynKw == nil
		a.dynPos = p.expression()
	case p.skipOp("**"):
		ok = a.dynKw == nil
		a.dynKw = p.expression()
	case p.cur().kind == tokName && p.peek().kind == tokOp && p.peek().text == "=":
		name := p.advance().text
		p.pos++
		ok = a.dynKw == nil && len(a.names) < maxArgs
		for _, n := range a.names {
			ok = ok && n != name
		}
		a.names = append(a.names, name)
		a.kw = append(a.kw, p.expression())
	default:
		ok = a.dynPos == nil && a.dynKw == nil && len(a.kw) == 0
		a.pos = append(a.pos, p.expression())
	}
	if !ok {
		p.fail("invalid syntax for function call expression")
	}
}

func (p *parser) call(e expr) expr {
	line := p.line()
	return &callExpr{line: line, fn: e, args: p.callArgs()}
}

// filters parses a chain of filters on e. With inline the first one stands without a
// bar, as in the filter tag. e is nil where the filtered text is that of a block.
func (p *parser) filters(e expr, inline bool) expr {
	for inline || p.isOp("|") {
		if !inline {
			p.pos++
		}
		inline = false
		f := &filterExpr{line: p.line(), e: e, name: p.dotted()}
		if p.isOp("(") {
			f.args = p.callArgs()
		}
		e = f
		p.link()
	}
	return e
}

func (p *parser) dotted() string {
	name := p.expect(tokName, "a name").text
	for p.skipOp(".") {
		name += "." + p.expect(tokName, "a name").text
	}
	return name
}

// test parses `is` and what follows.
func (p *parser) test(e expr) expr {
	t := &testExpr{line: p.line(), e: e}
	p.pos++
	t.negated = p.skipName("not")
	t.name = p.dotted()
	switch c := p.cur(); {
	case p.isOp("("):
		t.args = p.callArgs()
	case p.isName("else"), p.isName("or"), p.isName("and"):
	case p.isName("is"):
		p.fail("tests cannot be chained with is")
	case c.kind == tokName, c.kind == tokString, c.kind == tokNumber, p.isOp("["), p.isOp("{"):
		p.enter()
		t.args.pos = []expr{p.postfix(p.primary(false))}
		p.leave()
	}
	return t
}
