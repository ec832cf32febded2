package jinja

// tupleOpts says where a tuple without brackets stands.
type tupleOpts struct {
	cond      bool   // inline if is allowed
	simple    bool   // names and literals only
	namespace bool   // with simple: name.attr is an assignment target
	paren     bool   // inside brackets, where an empty tuple is allowed
	end       string // a name that ends the tuple
}

func (p *parser) tuple(opts tupleOpts) expr {
	var items []expr
	comma := false
	defer func(chain int) { p.chain = chain }(p.chain)
	for {
		if len(items) > 0 {
			p.expectOp(",")
		}
		if p.tupleEnds(opts.end) {
			break
		}
		switch {
		case opts.simple:
			items = append(items, p.primary(opts.namespace))
		case opts.cond || opts.paren:
			items = append(items, p.expression())
		default:
			items = append(items, p.or())
		}
		if !p.isOp(",") {
			break
		}
		comma = true
	}
	if !comma && len(items) > 0 {
		return items[0]
	}
	if !comma && !opts.paren {
		p.unexpected("an expression")
	}
	return &tupleExpr{items: items}
}

func (p *parser) tupleEnds(end string) bool {
	t := p.cur()
	return t.kind == tokVarEnd || t.kind == tokBlockEnd || p.isOp(")") || end != "" && p.isName(end)
}

// expression parses an expression with inline ifs.
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	chain := p.chain
	e := p.or()
	for p.skipName("if") {
		p.link()
		c := &condExpr{then: e, test: p.or()}
		if p.skipName("else") {
			c.orElse = p.expression()
		}
		e = c
	}
	p.chain = chain
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for p.skipName("or") {
		p.link()
		e = &logicExpr{a: e, b: p.and(), or: true}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.skipName("and") {
		p.link()
		e = &logicExpr{a: e, b: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if p.skipName("not") {
		p.enter()
		defer p.leave()
		return &notExpr{p.not()}
	}
	return p.compare()
}

var compareOps = map[string]compareOp{"==": cmpEq, "!=": cmpNe, "<": cmpLt, "<=": cmpLe, ">": cmpGt, ">=": cmpGe}

func (p *parser) compare() expr {
	e := p.sum()
	var c *compareExpr
	for {
		op := compareOp(0)
		switch t := p.cur(); {
		case t.kind == tokOp:
			op = compareOps[t.text]
		case p.isName("in"):
			op = cmpIn
		case p.isName("not") && p.peek().kind == tokName && p.peek().text == "in":
			p.pos++
			op = cmpNotIn
		}
		if op == 0 {
			break
		}
		p.pos++
		if c == nil {
			c = &compareExpr{first: e}
			e = c
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	return e
}

func (p *parser) sum() expr {
	e := p.concat()
	for p.isOp("+") || p.isOp("-") {
		op := opSub
		if p.advance().text == "+" {
			op = opAdd
		}
		e = p.binary(op, e, p.concat())
	}
	return e
}

// binary joins + of + into one node, so that a long sum of strings is built once.
func (p *parser) binary(op operator, a, b expr) expr {
	if sum, ok := a.(*sumExpr); ok && op == opAdd {
		sum.parts = append(sum.parts, b)
		return sum
	}
	if op == opAdd {
		return &sumExpr{parts: []expr{a, b}}
	}
	p.link()
	return &binaryExpr{op: op, a: a, b: b}
}

func (p *parser) concat() expr {
	e := p.product()
	if !p.isOp("~") {
		return e
	}
	parts := []expr{e}
	for p.skipOp("~") {
		parts = append(parts, p.product())
	}
	return &concatExpr{parts: parts}
}

func (p *parser) product() expr {
	e := p.power()
	for {
		op := opMul
		switch {
		case p.isOp("*"):
		case p.isOp("/"):
			op = opDiv
		case p.isOp("//"):
			op = opFloorDiv
		case p.isOp("%"):
			op = opMod
		default:
			return e
		}
		p.pos++
		e = p.binary(op, e, p.power())
	}
}

func (p *parser) power() expr {
	e := p.unary(true)
	for p.skipOp("**") {
		e = p.binary(opPow, e, p.unary(true))
	}
	return e
}

func (p *parser) unary(withFilter bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	switch {
	case p.skipOp("-"):
		e = newNeg(p.unary(false), true)
	case p.skipOp("+"):
		e = newNeg(p.unary(false), false)
	default:
		e = p.primary(false)
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filterExpr(e)
	}
	return e
}

func (p *parser) primary(namespace bool) expr {
	t := p.cur()
	switch {
	case t.kind == tokName:
		p.pos++
		return p.nameOrConst(t, namespace)
	case t.kind == tokString:
		s := p.advance().text
		for p.cur().kind == tokString {
			s += p.advance().text
			p.link()
		}
		return &constExpr{String(s)}
	case t.kind == tokNumber:
		p.pos++
		return &constExpr{t.num}
	case p.skipOp("("):
		p.enter()
		defer p.leave()
		e := p.tuple(tupleOpts{paren: true})
		p.expectOp(")")
		return e
	case p.skipOp("["):
		return p.list()
	case p.skipOp("{"):
		return p.dict()
	}
	p.fail("unexpected " + t.describe())
	return nil
}

func (p *parser) nameOrConst(t *token, namespace bool) expr {
	switch t.text {
	case "true", "True":
		return &constExpr{Bool(true)}
	case "false", "False":
		return &constExpr{Bool(false)}
	case "none", "None":
		return &constExpr{None()}
	}
	if namespace && p.skipOp(".") {
		return &nsRef{name: nameExpr{name: t.text}, attr: p.expect(tokName, "a name").text}
	}
	return &nameExpr{name: t.text}
}

func (p *parser) list() expr {
	l := &listExpr{}
	for !p.isOp("]") {
		if len(l.items) > 0 {
			p.expectOp(",")
			if p.isOp("]") {
				break
			}
		}
		l.items = append(l.items, p.expression())
	}
	p.expectOp("]")
	return l
}

func (p *parser) dict() expr {
	d := &dictExpr{}
	for !p.isOp("}") {
		if len(d.keys) > 0 {
			p.expectOp(",")
			if p.isOp("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.expectOp(":")
		d.vals = append(d.vals, p.expression())
	}
	p.expectOp("}")
	return d
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.isOp("."), p.isOp("["):
			e = p.subscript(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
		p.link()
	}
}

func (p *parser) filterExpr(e expr) expr {
	for {
		switch {
		case p.isOp("|"):
			e = p.filters(e, false)
		case p.isName("is"):
			e = p.test(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
		p.link()
	}
}

func (p *parser) subscript(e expr) expr {
	if p.skipOp(".") {
		switch t := p.advance(); t.kind {
		case tokName:
			return newAttr(e, t.text)
		case tokNumber:
			if t.num.isInt() {
				return &itemExpr{e: e, key: &constExpr{t.num}}
			}
		}
		p.pos--
		p.unexpected("a name or a number")
	}
	p.expectOp("[")
	var keys []expr
	for !p.isOp("]") {
		if len(keys) > 0 {
			p.expectOp(",")
		}
		keys = append(keys, p.subscribed())
	}
	p.expectOp("]")
	if len(keys) != 1 {
		for _, k := range keys {
			if s, ok := k.(*sliceExpr); ok && s.e == nil {
				p.fail("slices in a tuple are not supported")
			}
		}
		return &itemExpr{e: e, key: &tupleExpr{items: keys}}
	}
	if s, ok := keys[0].(*sliceExpr); ok && s.e == nil {
		s.e = e
		return s
	}
	return &itemExpr{e: e, key: keys[0]}
}

// subscribed parses what stands in the brackets of a subscript: a key, or a slice that
// does not yet know what it cuts.
func (p *parser) subscribed() expr {
	s := &sliceExpr{}
	if !p.isOp(":") {
		e := p.expression()
		if !p.isOp(":") {
			return e
		}
		s.start = e
	}
	p.pos++
	if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
		s.stop = p.expression()
	}
	if p.skipOp(":") && !p.isOp("]") && !p.isOp(",") {
		s.step = p.expression()
	}
	return s
}
