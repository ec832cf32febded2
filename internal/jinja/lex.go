package jinja

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokNumber
	tokOp // text is the operator
)

type token struct {
	kind tokenKind
	line int
	text string
	num  Value
}

// lexer cuts a source into tokens by the rules of jinja2's lexer.py.
type lexer struct {
	src    string
	pos    int
	line   int
	toks   []token
	braces []byte // closing brackets that are due
}

// lex returns the tokens of src, whose newlines are "\n".
func lex(src string) []token {
	lx := &lexer{src: src, line: 1}
	for lx.pos < len(src) {
		lx.data()
	}
	return append(lx.toks, token{kind: tokEOF, line: lx.line})
}

// normalizeNewlines makes all line ends "\n" and drops one at the end.
func normalizeNewlines(src string) string {
	if containsByte(src, '\r') {
		src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	}
	return strings.TrimSuffix(src, "\n")
}

// to moves to pos and counts the lines passed.
func (lx *lexer) to(pos int) {
	lx.line += strings.Count(lx.src[lx.pos:pos], "\n")
	lx.pos = pos
}

func (lx *lexer) fail(msg string) { panic(&Error{Line: lx.line, Message: msg}) }

func (lx *lexer) add(k tokenKind, text string) {
	lx.toks = append(lx.toks, token{kind: k, line: lx.line, text: text})
}

// data reads template text up to and with the next opening tag and all that belongs
// to that tag.
func (lx *lexer) data() {
	start, open := lx.pos, lx.pos
	for {
		i := strings.IndexByte(lx.src[open:], '{')
		if i < 0 || open+i+1 >= len(lx.src) {
			lx.add(tokData, lx.src[start:])
			lx.to(len(lx.src))
			return
		}
		open += i
		if c := lx.src[open+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		open++
	}
	sign := byte(0)
	after := open + 2
	if after < len(lx.src) && (lx.src[after] == '-' || lx.src[after] == '+') {
		sign = lx.src[after]
		after++
	}
	lx.text(start, open, sign)
	lx.to(after)
	switch lx.src[open+1] {
	case '#':
		lx.comment()
	case '%':
		if !lx.raw() {
			lx.add(tokBlockBegin, "")
			lx.code(tokBlockEnd)
		}
	default:
		lx.add(tokVarBegin, "")
		lx.code(tokVarEnd)
	}
}

// text adds the text src[start:end] that stands before a tag with the given sign.
func (lx *lexer) text(start, end int, sign byte) {
	text := lx.src[start:end]
	isVar := end+1 < len(lx.src) && lx.src[end+1] == '{'
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && !isVar:
		text = lx.lstrip(text, start)
	}
	if text != "" {
		lx.add(tokData, text)
	}
}

// lstrip drops the blanks between the start of a line and a tag.
func (lx *lexer) lstrip(text string, start int) string {
	nl := strings.LastIndexByte(text, '\n') + 1
	lineStart := nl > 0 || start == 0 || lx.src[start-1] == '\n'
	if lineStart && strings.TrimLeftFunc(text[nl:], isSpace) == "" {
		return text[:nl]
	}
	return text
}

// closing returns the length of the closing tag at pos with what it swallows, or 0.
func (lx *lexer) closing(pos int, end string, plus, trim bool) int {
	rest := lx.src[pos:]
	switch {
	case plus && strings.HasPrefix(rest, "+") && strings.HasPrefix(rest[1:], end):
		return 3
	case strings.HasPrefix(rest, "-") && strings.HasPrefix(rest[1:], end):
		return len(rest) - len(strings.TrimLeftFunc(rest[3:], isSpace))
	case !strings.HasPrefix(rest, end):
		return 0
	case trim && strings.HasPrefix(rest[2:], "\n"):
		return 3
	}
	return 2
}

func (lx *lexer) comment() {
	end := strings.Index(lx.src[lx.pos:], "#}")
	if end < 0 {
		lx.fail("Missing end of comment tag")
	}
	at := lx.pos + end
	if end > 0 && (lx.src[at-1] == '-' || lx.src[at-1] == '+') {
		at--
	}
	lx.to(at + lx.closing(at, "#}", true, true))
}

// raw reads a raw block if one starts at the cursor, which is behind "{%" and a sign.
func (lx *lexer) raw() bool {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(lx.src[lx.pos:], isSpace), "raw")
	if !ok {
		return false
	}
	begin := len(lx.src) - len(strings.TrimLeftFunc(rest, isSpace))
	n := lx.closing(begin, "%}", false, false)
	if n == 0 {
		return false
	}
	start := begin + n
	lx.to(start)
	for open := start; ; open++ {
		i := strings.Index(lx.src[open:], "{%")
		if i < 0 {
			lx.fail("Missing end of raw directive")
		}
		open += i
		if end, sign := lx.endraw(open + 2); end > 0 {
			lx.rawText(start, open, sign)
			lx.to(end)
			return true
		}
	}
}

func (lx *lexer) rawText(start, open int, sign byte) {
	text := lx.src[start:open]
	switch sign {
	case '-':
		text = strings.TrimRightFunc(text, isSpace)
	case 0:
		text = lx.lstrip(text, start)
	}
	if text != "" {
		lx.add(tokData, text)
	}
}

// endraw returns the end of an endraw tag whose name or sign starts at pos, or 0.
func (lx *lexer) endraw(pos int) (end int, sign byte) {
	if pos < len(lx.src) && (lx.src[pos] == '-' || lx.src[pos] == '+') {
		sign = lx.src[pos]
		pos++
	}
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(lx.src[pos:], isSpace), "endraw")
	if !ok {
		return 0, sign
	}
	at := len(lx.src) - len(strings.TrimLeftFunc(rest, isSpace))
	if n := lx.closing(at, "%}", true, true); n > 0 {
		return at + n, sign
	}
	return 0, sign
}

// code reads the tokens of a tag up to its end.
func (lx *lexer) code(end tokenKind) {
	for lx.pos < len(lx.src) {
		if len(lx.braces) == 0 {
			n := 0
			if end == tokBlockEnd {
				n = lx.closing(lx.pos, "%}", true, true)
			} else {
				n = lx.closing(lx.pos, "}}", false, false)
			}
			if n > 0 {
				lx.add(end, "")
				lx.to(lx.pos + n)
				return
			}
		}
		lx.code1()
	}
}

// code1 reads one token or the blanks before one.
func (lx *lexer) code1() {
	rest := lx.src[lx.pos:]
	c := rest[0]
	switch {
	case c < utf8.RuneSelf && isSpace(rune(c)):
		lx.to(len(lx.src) - len(strings.TrimLeftFunc(rest, isSpace)))
	case c >= '0' && c <= '9':
		lx.number(rest)
	case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		lx.name(rest)
	case c == '\'' || c == '"':
		lx.quoted(rest, c)
	case c >= utf8.RuneSelf:
		r, _ := utf8.DecodeRuneInString(rest)
		if isSpace(r) {
			lx.to(len(lx.src) - len(strings.TrimLeftFunc(rest, isSpace)))
			return
		}
		lx.name(rest)
	default:
		lx.operator(rest)
	}
}

func (lx *lexer) name(rest string) {
	n := strings.IndexFunc(rest, func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r)
	})
	if n < 0 {
		n = len(rest)
	}
	if n == 0 {
		lx.fail("unexpected character")
	}
	if r, _ := utf8.DecodeRuneInString(rest); r >= utf8.RuneSelf && !unicode.IsLetter(r) {
		lx.fail("Invalid character in identifier")
	}
	lx.add(tokName, rest[:n])
	lx.pos += n
}

func (lx *lexer) operator(rest string) {
	n := 1
	if len(rest) > 1 {
		switch rest[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			n = 2
		}
	}
	op := rest[:n]
	if n == 1 && !strings.Contains("+-/*%~[](){}><=.:|,;", op) {
		lx.fail("unexpected character")
	}
	switch op {
	case "{":
		lx.braces = append(lx.braces, '}')
	case "(":
		lx.braces = append(lx.braces, ')')
	case "[":
		lx.braces = append(lx.braces, ']')
	case "}", ")", "]":
		last := len(lx.braces) - 1
		if last < 0 || lx.braces[last] != op[0] {
			lx.fail("unexpected '" + op + "'")
		}
		lx.braces = lx.braces[:last]
	}
	lx.add(tokOp, op)
	lx.pos += n
}

// number reads an int or a float. Digits may be parted by single underscores.
func (lx *lexer) number(rest string) {
	afterDot := lx.pos > 0 && lx.src[lx.pos-1] == '.'
	n := digits(rest, "0123456789")
	if end := floatEnd(rest, n); end > 0 && !afterDot {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(rest[:end], "_", ""), 64) // inf if too large
		lx.addNumber(Float(f), end)
		return
	}
	base, skip, set := 10, 0, "0123456789"
	if len(rest) > 1 && rest[0] == '0' {
		switch rest[1] | 0x20 {
		case 'x':
			base, skip, set = 16, 2, "0123456789abcdefABCDEF"
		case 'o':
			base, skip, set = 8, 2, "01234567"
		case 'b':
			base, skip, set = 2, 2, "01"
		}
	}
	body := strings.TrimPrefix(rest[skip:], "_")
	pad := len(rest[skip:]) - len(body)
	if d := digits(body, set); skip > 0 && d > 0 {
		n = skip + pad + d
	} else {
		base, skip = 10, 0
		if rest[0] == '0' {
			n = digits(rest, "0")
		}
	}
	v, err := parseInt(strings.ReplaceAll(rest[skip:n], "_", ""), base)
	if err != nil {
		lx.fail("int literal is too large")
	}
	lx.addNumber(v, n)
}

func (lx *lexer) addNumber(v Value, n int) {
	lx.add(tokNumber, lx.src[lx.pos:lx.pos+n])
	lx.toks[len(lx.toks)-1].num = v
	lx.pos += n
}

// digits returns the length of the longest run of digits of set, parted by single
// underscores, at the start of s.
func digits(s, set string) int {
	n := 0
	for i := 0; i < len(s); i++ {
		if strings.IndexByte(set, s[i]) >= 0 {
			n = i + 1
		} else if s[i] != '_' || i != n || n == 0 {
			break
		}
	}
	return n
}

// floatEnd returns the end of a float whose whole part ends at n, or 0 for an int.
func floatEnd(s string, n int) int {
	const dec = "0123456789"
	end := 0
	if n < len(s) && s[n] == '.' {
		if d := digits(s[n+1:], dec); d > 0 {
			n += 1 + d
			end = n
		}
	}
	if n < len(s) && s[n]|0x20 == 'e' {
		exp := n + 1
		if exp < len(s) && (s[exp] == '+' || s[exp] == '-') {
			exp++
		}
		if d := digits(s[exp:], dec); d > 0 {
			end = exp + d
		}
	}
	return end
}
