package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isSpace is Python's str.isspace for one character, which is also the \s of its
// regular expressions: Unicode's White_Space and the four separators below space.
func isSpace(r rune) bool {
	if r < utf8.RuneSelf {
		return r == ' ' || r >= '\t' && r <= '\r' || r >= 0x1c && r <= 0x1f
	}
	return unicode.IsSpace(r)
}

// upperRune appends the upper case of r.
func upperRune(b []byte, r rune) []byte {
	if r < 0x80 {
		return utf8.AppendRune(b, unicode.ToUpper(r))
	}
	if s, ok := specialUpper[r]; ok {
		return append(b, s...)
	}
	return utf8.AppendRune(b, unicode.ToUpper(r))
}

func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	b := make([]byte, 0, len(s)+8)
	for i, r := range s {
		if r == utf8.RuneError {
			b = append(b, s[i:i+runeSize(s[i:])]...)
			continue
		}
		b = upperRune(b, r)
	}
	return string(b)
}

func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	b := make([]byte, 0, len(s)+8)
	for i, r := range s {
		switch r {
		case utf8.RuneError:
			b = append(b, s[i:i+runeSize(s[i:])]...)
		case 'İ':
			b = append(b, "i̇"...)
		case 'Σ':
			if isFinalSigma(s, i) {
				b = append(b, "ς"...)
			} else {
				b = append(b, "σ"...)
			}
		default:
			b = utf8.AppendRune(b, unicode.ToLower(r))
		}
	}
	return string(b)
}

// isFinalSigma tells whether the capital sigma at s[i:] ends a word: a letter before
// it and none after it, marks and the like apart.
func isFinalSigma(s string, i int) bool {
	before := strings.TrimRightFunc(s[:i], isCaseIgnorable)
	r, _ := utf8.DecodeLastRuneInString(before)
	if !isCased(r) {
		return false
	}
	after := strings.TrimLeftFunc(s[i+len("Σ"):], isCaseIgnorable)
	r, _ = utf8.DecodeRuneInString(after)
	return !isCased(r)
}

func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) || unicode.Is(unicode.Other_Lowercase, r) || unicode.Is(unicode.Other_Uppercase, r)
}

func isCaseIgnorable(r rune) bool {
	return strings.ContainsRune("'.:·’‘․‧︓﹒﹕＇．：^`¨´¸", r) || unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func runeSize(s string) int {
	_, size := utf8.DecodeRuneInString(s)
	return size
}

// titleRune appends r as the first letter of a word.
func titleRune(b []byte, r rune) []byte {
	if s, ok := specialTitle[r]; ok {
		return append(b, s...)
	}
	return utf8.AppendRune(b, unicode.ToTitle(r))
}

// capitalize is str.capitalize: the first character in title case, the rest lower.
func capitalize(s string) string {
	if s == "" {
		return s
	}
	r, size := utf8.DecodeRuneInString(s)
	return string(titleRune(nil, r)) + lower(s[size:])
}

// titleCase is str.title: every letter after something that is not one is a capital.
func titleCase(s string) string {
	b := make([]byte, 0, len(s))
	inWord := false
	for i, r := range s {
		switch {
		case inWord && r == 'Σ' && isFinalSigma(s, i):
			b = append(b, "ς"...)
		case inWord:
			b = append(b, lower(s[i:i+runeSize(s[i:])])...)
		case r == utf8.RuneError:
			b = append(b, s[i:i+runeSize(s[i:])]...)
		default:
			b = titleRune(b, r)
		}
		inWord = isCased(r)
	}
	return string(b)
}

func swapCase(s string) string {
	b := make([]byte, 0, len(s))
	for i, r := range s {
		c := s[i : i+runeSize(s[i:])]
		switch {
		case isUpper(c):
			b = append(b, lower(c)...)
		case isLower(c):
			b = upperRune(b, r)
		default:
			b = append(b, c...)
		}
	}
	return string(b)
}

// casing reports whether s has cased characters and whether all of them satisfy ok.
func casing(s string, ok func(rune) bool) bool {
	any := false
	for _, r := range s {
		if !isCased(r) {
			continue
		}
		if !ok(r) {
			return false
		}
		any = true
	}
	return any
}

func isLower(s string) bool {
	return casing(s, func(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) })
}

func isUpper(s string) bool {
	return casing(s, func(r rune) bool { return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r) })
}

func isTitleCase(s string) bool {
	inWord, any := false, false
	for _, r := range s {
		up := unicode.IsUpper(r) || unicode.IsTitle(r) || unicode.Is(unicode.Other_Uppercase, r)
		if up && inWord || !up && isCased(r) && !inWord {
			return false
		}
		inWord = isCased(r)
		any = any || inWord
	}
	return any
}

// strip is str.strip, lstrip and rstrip: of white space if chars is None.
func (st *state) strip(v, chars Value, left, right bool) Value {
	if chars.k == kString && chars.n > smallSet {
		st.charge(int(chars.n) / 16)
	}
	s := strip(v.str(), chars, left, right)
	st.charge((int(v.n) - len(s)) / stepBytes)
	return sameKind(s, v)
}

func strip(s string, chars Value, left, right bool) string {
	cut := isSpace
	switch chars.k {
	case kNone:
	case kString:
		set := chars.str()
		if len(set) == 1 && set[0] < utf8.RuneSelf {
			for left && len(s) > 0 && s[0] == set[0] {
				s = s[1:]
			}
			for right && len(s) > 0 && s[len(s)-1] == set[0] {
				s = s[:len(s)-1]
			}
			return s
		}
		cut = memberOf(set)
	default:
		failf("strip arg must be None or str, not %s", chars.typeName())
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

// smallSet is the number of bytes up to which a set of characters is searched.
const smallSet = 32

// memberOf returns a function that tells whether a character is in set.
func memberOf(set string) func(rune) bool {
	if len(set) <= smallSet {
		return func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	in := map[rune]bool{}
	for _, r := range set {
		in[r] = true
	}
	return func(r rune) bool { return in[r] }
}

// splitLines is str.splitlines.
func splitLines(s string, keepEnds bool) []string {
	var lines []string
	for s != "" {
		n := strings.IndexFunc(s, isLineEnd)
		if n < 0 {
			return append(lines, s)
		}
		end := n + runeSize(s[n:])
		if s[n] == '\r' && end < len(s) && s[end] == '\n' {
			end++
		}
		if keepEnds {
			n = end
		}
		lines = append(lines, s[:n])
		s = s[end:]
	}
	return lines
}

func isLineEnd(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

// splitSpace is str.split() at runs of white space, at most limit times.
func splitSpace(s string, limit int) []string {
	var parts []string
	for {
		s = strings.TrimLeftFunc(s, isSpace)
		if s == "" {
			return parts
		}
		n := strings.IndexFunc(s, isSpace)
		if limit == len(parts) {
			return append(parts, s)
		}
		if n < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:n])
		s = s[n:]
	}
}

// rsplitSpace is str.rsplit() at runs of white space, at most limit times.
func rsplitSpace(s string, limit int) []string {
	var parts []string
	for {
		s = strings.TrimRightFunc(s, isSpace)
		if s == "" {
			break
		}
		n := strings.LastIndexFunc(s, isSpace)
		if n < 0 || limit == len(parts) {
			parts = append(parts, s)
			break
		}
		_, size := utf8.DecodeRuneInString(s[n:])
		parts = append(parts, s[n+size:])
		s = s[:n]
	}
	slices.Reverse(parts)
	return parts
}
