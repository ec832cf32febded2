package jinja

import "slices"

const (
	maxSource = 1 << 20 // bytes of a template
	maxNest   = 200     // nested tags and brackets; CPython refuses about half of that
	maxArgs   = 1000    // named arguments of a macro or a call
	maxChain  = 1500    // nodes of one expression that hang on each other, as in a.b.c
)

// parser builds the tree by recursive descent, in the order of jinja2's parser.py.
type parser struct {
	toks  []token
	pos   int
	nest  int
	chain int
	inner int // tokens of the blocks that have ended
}

// tokensPerStep is the number of tokens that count as a step when they are run.
const tokensPerStep = 16

// Parse parses a chat template. Errors are of type *Error.
func Parse(source string) (t *Template, err error) {
	p := &parser{}
	defer func() {
		if e := recovered(recover(), p.line()); e != nil {
			t, err = nil, e
		}
	}()
	if len(source) > maxSource {
		failLimit("template is too long")
	}
	p.toks = lex(normalizeNewlines(source))
	body := p.block()
	if p.cur().kind != tokEOF {
		p.fail("unexpected end tag '" + p.cur().text + "'")
	}
	parts := readsParts(body)
	t = compile(body)
	t.readsParts = parts
	return t, nil
}

func (p *parser) line() int {
	if p.pos < len(p.toks) {
		return p.toks[p.pos].line
	}
	return 1
}

func (p *parser) fail(msg string) { panic(&Error{Line: p.line(), Message: msg}) }

func (p *parser) cur() *token { return &p.toks[p.pos] }

// peek returns the token after the current one.
func (p *parser) peek() *token { return &p.toks[min(p.pos+1, len(p.toks)-1)] }

func (p *parser) advance() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) isName(name string) bool { return p.cur().kind == tokName && p.cur().text == name }

func (p *parser) isOp(op string) bool { return p.cur().kind == tokOp && p.cur().text == op }

func (p *parser) skipName(name string) bool {
	ok := p.isName(name)
	if ok {
		p.pos++
	}
	return ok
}

func (p *parser) skipOp(op string) bool {
	ok := p.isOp(op)
	if ok {
		p.pos++
	}
	return ok
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		p.unexpected("'" + op + "'")
	}
}

func (p *parser) expectName(name string) {
	if !p.skipName(name) {
		p.unexpected("'" + name + "'")
	}
}

func (p *parser) expect(k tokenKind, what string) token {
	if p.cur().kind != k {
		p.unexpected(what)
	}
	return p.advance()
}

func (p *parser) unexpected(want string) { p.fail("expected " + want + ", got " + p.cur().describe()) }

func (t *token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "text"
	case tokBlockEnd:
		return "'%}'"
	case tokVarEnd:
		return "'}}'"
	case tokString:
		return "a string"
	}
	return "'" + t.text + "'"
}

// enter counts a level of nesting; leave is its end.
func (p *parser) enter() {
	if p.nest++; p.nest > maxNest {
		panic(&Error{Line: p.line(), Message: "template is nested too deeply", Limit: true})
	}
}

func (p *parser) leave() { p.nest-- }

// link counts a node that holds the one before it.
func (p *parser) link() {
	if p.chain++; p.chain > maxChain {
		panic(&Error{Line: p.line(), Message: "expression is too long", Limit: true})
	}
}

// block parses statements up to one of the end tags, whose name is then current, or
// to the end of the template if there are none.
func (p *parser) block(ends ...string) []stmt {
	p.enter()
	defer p.leave()
	start, inner := p.pos, p.inner
	body := p.statements(ends)
	own := p.pos - start - (p.inner - inner)
	p.inner = inner + p.pos - start
	if cost := own / tokensPerStep; cost > 0 {
		body = append([]stmt{&costStmt{cost}}, body...)
	}
	return body
}

func (p *parser) statements(ends []string) []stmt {
	var body []stmt
	for {
		switch t := p.cur(); t.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.fail("unexpected end of template, expected '" + ends[len(ends)-1] + "'")
			}
			return body
		case tokData:
			p.pos++
			body = append(body, &textStmt{text: t.text})
		case tokVarBegin:
			p.pos++
			body = append(body, &printStmt{line: t.line, e: p.tuple(tupleOpts{cond: true})})
			p.expect(tokVarEnd, "'}}'")
		case tokBlockBegin:
			p.pos++
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().text) {
				return body
			}
			body = append(body, p.statement()...)
			p.expect(tokBlockEnd, "'%}'")
		default:
			p.unexpected("a tag")
		}
	}
}

// body parses the rest of a tag and the statements up to its end tag. The name of the
// end tag is consumed and returned.
func (p *parser) body(ends ...string) ([]stmt, string) {
	p.skipOp(":")
	p.expect(tokBlockEnd, "'%}'")
	body := p.block(ends...)
	return body, p.advance().text
}

func (p *parser) statement() []stmt {
	t := p.expect(tokName, "a tag name")
	p.chain = 0
	switch t.text {
	case "if":
		return []stmt{p.ifTag(t.line)}
	case "for":
		return []stmt{p.forTag(t.line)}
	case "set":
		return []stmt{p.setTag(t.line)}
	case "macro":
		return []stmt{p.macroTag(t.line)}
	case "call":
		return []stmt{p.callTag(t.line)}
	case "filter":
		return []stmt{p.filterTag(t.line)}
	case "with":
		return []stmt{p.withTag(t.line)}
	case "generation":
		s := &scopeStmt{line: t.line, special: true}
		s.body, _ = p.body("endgeneration")
		return []stmt{s}
	case "print":
		return p.printTag(t.line)
	case "break":
		return []stmt{&jumpStmt{line: t.line, to: ctlBreak}}
	case "continue":
		return []stmt{&jumpStmt{line: t.line, to: ctlContinue}}
	case "import", "from", "include", "extends", "block", "autoescape":
		p.pos--
		p.fail("tag '" + t.text + "' is not supported")
	}
	p.pos--
	p.fail("unknown tag '" + t.text + "'")
	return nil
}

func (p *parser) printTag(line int) (body []stmt) {
	for p.cur().kind != tokBlockEnd {
		if len(body) > 0 {
			p.expectOp(",")
		}
		body = append(body, &printStmt{line: line, e: p.expression()})
	}
	return body
}

func (p *parser) ifTag(line int) stmt {
	s := &ifStmt{}
	for {
		arm := ifArm{line: line, test: p.tuple(tupleOpts{})}
		var end string
		arm.body, end = p.body("elif", "else", "endif")
		s.arms = append(s.arms, arm)
		line = p.line()
		switch end {
		case "else":
			s.orElse, _ = p.body("endif")
			return s
		case "endif":
			return s
		}
	}
}

func (p *parser) forTag(line int) stmt {
	s := &forStmt{line: line}
	s.target = p.target(tupleOpts{simple: true, end: "in"})
	p.expectName("in")
	s.iter = p.tuple(tupleOpts{end: "recursive"})
	if start := p.pos; p.skipName("if") {
		s.test = p.expression()
		s.testCost = 1 + (p.pos-start)/tokensPerStep
	}
	s.recursive = p.skipName("recursive")
	var end string
	if s.body, end = p.body("endfor", "else"); end == "else" {
		s.orElse, _ = p.body("endfor")
		s.hasElse = true
	}
	return s
}

func (p *parser) setTag(line int) stmt {
	target := p.target(tupleOpts{simple: true, namespace: true})
	if p.skipOp("=") {
		return &setStmt{line: line, target: target, e: p.tuple(tupleOpts{cond: true})}
	}
	s := &captureStmt{line: line, target: target}
	s.filter = p.filters(nil, false)
	s.body, _ = p.body("endset")
	return s
}

func (p *parser) withTag(line int) stmt {
	s := &scopeStmt{line: line}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.target(tupleOpts{simple: true}))
		p.expectOp("=")
		s.values = append(s.values, p.expression())
	}
	s.body, _ = p.body("endwith")
	return s
}

func (p *parser) filterTag(line int) stmt {
	s := &captureStmt{line: line}
	s.filter = p.filters(nil, true)
	s.body, _ = p.body("endfilter")
	return s
}

func (p *parser) macroTag(line int) stmt {
	m := &macroDef{line: line, name: p.expect(tokName, "a name").text}
	p.signature(m)
	m.body, _ = p.body("endmacro")
	return &macroStmt{def: m, target: &nameExpr{name: m.name}}
}

func (p *parser) callTag(line int) stmt {
	m := &macroDef{line: line, name: "caller"}
	if p.isOp("(") {
		p.signature(m)
	}
	c, ok := p.expression().(*callExpr)
	if !ok {
		p.fail("expected a call")
	}
	m.body, _ = p.body("endcall")
	return &callStmt{line: line, def: m, call: c}
}

func (p *parser) signature(m *macroDef) {
	start := p.pos
	p.expectOp("(")
	for !p.isOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		t := p.expect(tokName, "a name")
		prm := param{name: t.text}
		if p.skipOp("=") {
			prm.def = p.expression()
		} else if n := len(m.params); n > 0 && m.params[n-1].def != nil {
			p.fail("non-default argument follows default argument")
		}
		for _, other := range m.params {
			if other.name == prm.name {
				p.fail("duplicate argument '" + prm.name + "'")
			}
		}
		if m.params = append(m.params, prm); len(m.params) > maxArgs {
			p.fail("too many arguments")
		}
	}
	p.expectOp(")")
	m.cost = (p.pos - start) / tokensPerStep
}

// target parses what a value is assigned to: a name, a tuple of targets or, with
// opts.namespace, an attribute of a name.
func (p *parser) target(opts tupleOpts) expr {
	e := p.tuple(opts)
	p.checkTarget(e, opts.namespace)
	return e
}

func (p *parser) checkTarget(e expr, namespace bool) {
	switch e := e.(type) {
	case *nameExpr:
		return
	case *nsRef:
		return
	case *tupleExpr:
		for _, item := range e.items {
			p.checkTarget(item, namespace)
		}
		return
	}
	p.fail("cannot assign to this expression")
}
