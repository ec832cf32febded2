package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

func filterRound(st *state, v Value, a []Value) Value {
	digits, method := opt(a[0], Int(0)), opt(a[1], String("common"))
	if !v.isNumber() {
		failf("type %s doesn't define __round__ method", v.typeName())
	}
	name := ""
	if method.k == kString {
		name = method.str()
	}
	switch name {
	case "common":
		if digits.k == kNone {
			if v.k == kFloat {
				return floatToInt(math.RoundToEven(v.float()))
			}
			return plainInt(v)
		}
		return roundNumber(v, int64(wantInt(digits)))
	case "ceil", "floor":
	default:
		fail("method must be common, ceil or floor")
	}
	unit := arith(opPow, Int(10), Int(int64(wantInt(digits))))
	scaled := arith(opMul, v, unit)
	if scaled.k == kFloat {
		f := math.Floor(scaled.float())
		if name == "ceil" {
			f = math.Ceil(scaled.float())
		}
		scaled = floatToInt(f)
	}
	return arith(opDiv, scaled, unit)
}

// filterInt is int(v), for strings int(v, base), with a default where that fails.
func filterInt(st *state, v Value, a []Value) Value {
	def, base := opt(a[0], Int(0)), wantInt(opt(a[1], Int(10)))
	switch v.k {
	case kUndefined:
		failUndefined(v)
	case kBool, kInt, kBig:
		return plainInt(v)
	case kFloat:
		if f := v.float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return floatToInt(f)
		}
		if math.IsInf(v.float(), 0) {
			fail("cannot convert float infinity to integer")
		}
	case kString:
		st.charge(int(v.n) / stepBytes)
		if n, ok := parsePythonInt(v.str(), base); ok {
			return n
		}
		if f, ok := parsePythonFloat(v.str()); ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return floatToInt(f)
		}
	}
	return def
}

func filterFloat(st *state, v Value, a []Value) Value {
	switch {
	case v.k == kUndefined:
		failUndefined(v)
	case v.isNumber():
		return Float(toFloat(v))
	case v.k == kString:
		st.charge(int(v.n) / stepBytes)
		if f, ok := parsePythonFloat(v.str()); ok {
			return Float(f)
		}
	}
	return opt(a[0], Float(0))
}

// asciiDigits trims s as int() and float() do and makes all decimal digits ASCII. ok
// is false if an underscore does not stand between two digits.
func asciiDigits(s string) (string, bool) {
	s = strings.TrimFunc(s, isSpace)
	ok := true
	digit := false
	out := strings.Map(func(r rune) rune {
		switch {
		case r == '_':
			ok = ok && digit
			digit = false
			return -1
		case r >= 0x80 && unicode.Is(unicode.Nd, r):
			r = '0' + decimalValue(r)
		}
		digit = r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z'
		return r
	}, s)
	return out, ok && !strings.HasSuffix(s, "_")
}

// decimalValue is the value of a decimal digit: digits come in runs of ten.
func decimalValue(r rune) rune {
	n := rune(0)
	for unicode.Is(unicode.Nd, r-n-1) {
		n++
	}
	return n % 10
}

func parsePythonInt(s string, base int) (Value, bool) {
	s, ok := asciiDigits(s)
	if !ok || s == "" || base < 0 || base == 1 || base > 36 {
		return Value{}, false
	}
	neg := s[0] == '-'
	if neg || s[0] == '+' {
		s = s[1:]
	}
	prefix := map[int]string{16: "0x", 8: "0o", 2: "0b"}
	low := strings.ToLower(s)
	for b, p := range prefix {
		if (base == b || base == 0) && strings.HasPrefix(low, p) {
			s, base = s[2:], b
		}
	}
	if base == 0 {
		if base = 10; len(s) > 1 && s[0] == '0' && strings.Trim(s, "0") != "" {
			return Value{}, false
		}
	}
	if s == "" || s[0] == '-' || s[0] == '+' || len(s) > maxDigits {
		return Value{}, false
	}
	b, ok := new(big.Int).SetString(s, base)
	if !ok {
		return Value{}, false
	}
	if neg {
		b.Neg(b)
	}
	return bigValue(b), true
}

func parsePythonFloat(s string) (float64, bool) {
	s, ok := asciiDigits(s)
	if !ok || s == "" || strings.ContainsAny(s, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}
