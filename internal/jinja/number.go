package jinja

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
)

const (
	maxDigits = 4300    // of an int as text: sys.int_info.default_max_str_digits
	maxBits   = 1 << 16 // of an int in arithmetic; Python has no bound
)

var errNumber = errors.New("not a JSON number")

// Number returns the value of the text of a JSON number as Python's json.loads does:
// an int of any size when it has no fraction and no exponent, otherwise a float.
// Ints of more than 4,300 digits are an error, as in Python.
func Number(raw string) (Value, error) {
	digits := strings.TrimPrefix(raw, "-")
	if digits == "" || digits[0] < '0' || digits[0] > '9' || strings.ContainsAny(raw, "xX_pPnN") {
		return Value{}, errNumber
	}
	if strings.ContainsAny(digits, ".eE") {
		f, err := strconv.ParseFloat(raw, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return Value{}, errNumber
		}
		return Float(f), nil
	}
	return parseInt(raw, 10)
}

func parseInt(text string, base int) (Value, error) {
	if n, err := strconv.ParseInt(text, base, 64); err == nil {
		return Int(n), nil
	}
	if len(strings.TrimPrefix(text, "-")) > maxDigits {
		return Value{}, errors.New("int has more than 4300 digits")
	}
	b, ok := new(big.Int).SetString(text, base)
	if !ok {
		return Value{}, errNumber
	}
	return bigValue(b), nil
}

// toBig returns the int v as a big.Int that must not be changed.
func toBig(v Value) *big.Int {
	if v.k == kBig {
		return v.bigInt()
	}
	return big.NewInt(v.n)
}

// toFloat converts a number as Python's float() does.
func toFloat(v Value) float64 {
	switch v.k {
	case kFloat:
		return v.float()
	case kBig:
		f, _ := new(big.Float).SetInt(v.bigInt()).Float64()
		if math.IsInf(f, 0) {
			fail("int too large to convert to float")
		}
		return f
	}
	return float64(v.n)
}

// appendFloat appends repr(f): the shortest digits that read back as f.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[start:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

func appendInt(dst []byte, v Value) []byte {
	if v.k != kBig {
		return strconv.AppendInt(dst, v.n, 10)
	}
	if v.bigInt().BitLen() > maxDigits*10/3 {
		fail("int has more than 4300 digits")
	}
	start := len(dst)
	dst = v.bigInt().Append(dst, 10)
	if len(dst)-start > maxDigits+1 {
		fail("int has more than 4300 digits")
	}
	return dst
}

type operator uint8

const (
	opAdd operator = iota
	opSub
	opMul
	opDiv
	opFloorDiv
	opMod
	opPow
)

var operatorText = [...]string{"+", "-", "*", "/", "//", "%", "** or pow()"}

func badOperands(op operator, a, b Value) {
	for _, v := range [...]Value{a, b} {
		if v.k == kUndefined {
			failUndefined(v)
		}
	}
	failf("unsupported operand type(s) for %s: '%s' and '%s'", operatorText[op], a.typeName(), b.typeName())
}

// arith is a op b for two numbers.
func arith(op operator, a, b Value) Value {
	if a.k == kFloat || b.k == kFloat {
		return floatArith(op, toFloat(a), toFloat(b))
	}
	if a.k != kBig && b.k != kBig {
		if v, ok := smallArith(op, a.n, b.n); ok {
			return v
		}
	}
	return bigArith(op, toBig(a), toBig(b))
}

// smallArith computes on int64 and reports false where that overflows.
func smallArith(op operator, a, b int64) (Value, bool) {
	switch op {
	case opAdd:
		c := a + b
		return Int(c), (c > a) == (b > 0)
	case opSub:
		c := a - b
		return Int(c), (c < a) == (b > 0)
	case opMul:
		if a == 0 || b == 0 {
			return Int(0), true
		}
		c := a * b
		return Int(c), c/b == a && !(a == -1 && b == math.MinInt64) && !(b == -1 && a == math.MinInt64)
	case opFloorDiv, opMod:
		if b == 0 {
			fail("integer division or modulo by zero")
		}
		if a == math.MinInt64 && b == -1 {
			return Value{}, false
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q, r = q-1, r+b
		}
		if op == opMod {
			return Int(r), true
		}
		return Int(q), true
	case opDiv:
		const exact = 1 << 53
		if b != 0 && a > -exact && a < exact && b > -exact && b < exact {
			return Float(float64(a) / float64(b)), true
		}
	}
	return Value{}, false
}

func bigArith(op operator, a, b *big.Int) Value {
	if a.BitLen()+b.BitLen() > maxBits && op != opPow {
		failLimit("int is too large")
	}
	c := new(big.Int)
	switch op {
	case opAdd:
		return bigValue(c.Add(a, b))
	case opSub:
		return bigValue(c.Sub(a, b))
	case opMul:
		return bigValue(c.Mul(a, b))
	case opPow:
		return bigPow(a, b)
	}
	if b.Sign() == 0 {
		fail("division by zero")
	}
	if op == opDiv {
		f, _ := new(big.Rat).SetFrac(a, b).Float64()
		if math.IsInf(f, 0) {
			fail("integer division result too large for a float")
		}
		return Float(f)
	}
	r := new(big.Int)
	c.QuoRem(a, b, r)
	if r.Sign() != 0 && r.Sign() != b.Sign() {
		c.Sub(c, big.NewInt(1))
		r.Add(r, b)
	}
	if op == opMod {
		return bigValue(r)
	}
	return bigValue(c)
}

func bigPow(a, b *big.Int) Value {
	if b.Sign() < 0 {
		return floatArith(opPow, toFloat(bigValue(a)), toFloat(bigValue(b)))
	}
	if a.BitLen() > 1 && (!b.IsInt64() || b.Int64()*int64(a.BitLen()) > maxBits || b.Int64() > maxBits) {
		failLimit("result of ** is too large")
	}
	if a.BitLen() <= 1 { // -1, 0 or 1: only the sign of b and its last bit matter
		if b.Sign() == 0 || a.Sign() > 0 || a.Sign() < 0 && b.Bit(0) == 0 {
			return Int(1)
		}
		return bigValue(a)
	}
	return bigValue(new(big.Int).Exp(a, b, nil))
}

func floatArith(op operator, a, b float64) Value {
	switch op {
	case opAdd:
		return Float(a + b)
	case opSub:
		return Float(a - b)
	case opMul:
		return Float(a * b)
	case opPow:
		return floatPow(a, b)
	}
	if b == 0 {
		fail("float division by zero")
	}
	if op == opDiv {
		return Float(a / b)
	}
	mod := math.Mod(a, b) // the steps of CPython's float_divmod
	div := (a - mod) / b
	if mod != 0 {
		if (b < 0) != (mod < 0) {
			mod += b
			div--
		}
	} else {
		mod = math.Copysign(0, b)
	}
	if op == opMod {
		return Float(mod)
	}
	if div == 0 {
		return Float(math.Copysign(0, a/b))
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return Float(floor)
}

func floatPow(a, b float64) Value {
	if a == 0 && b < 0 {
		fail("0.0 cannot be raised to a negative power")
	}
	if a < 0 && !math.IsInf(a, 0) && b != math.Trunc(b) && !math.IsInf(b, 0) {
		fail("complex numbers are not supported")
	}
	f := math.Pow(a, b)
	if math.IsInf(f, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		fail("numerical result out of range")
	}
	return Float(f)
}

// floatToInt is int(f).
func floatToInt(f float64) Value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		fail("cannot convert float infinity or NaN to integer")
	}
	if f = math.Trunc(f); math.Abs(f) < 1<<62 {
		return Int(int64(f))
	}
	b, _ := big.NewFloat(f).Int(nil)
	return bigValue(b)
}

// roundNumber is round(v, digits).
func roundNumber(v Value, digits int64) Value {
	if v.k != kFloat {
		if digits >= 0 {
			return plainInt(v)
		}
		return roundInt(toBig(v), digits)
	}
	f := v.float()
	if math.IsNaN(f) || math.IsInf(f, 0) || f == 0 || digits > 323 {
		return v
	}
	if digits < -308 {
		return Float(math.Copysign(0, f))
	}
	if digits >= 0 {
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
	} else {
		text := strconv.FormatFloat(math.Abs(f), 'f', -1, 64)
		whole, _, _ := strings.Cut(text, ".")
		keep := len(whole) + int(digits) // digits before the rounded ones
		if keep < 0 {
			return Float(math.Copysign(0, f))
		}
		sign := f
		b, _ := new(big.Float).SetFloat64(math.Abs(f)).Int(nil)
		exact := new(big.Float).SetInt(b).Cmp(new(big.Float).SetFloat64(math.Abs(f))) == 0
		f = toFloat(roundHalfEven(b, -digits, exact))
		f = math.Copysign(f, sign)
	}
	if math.IsInf(f, 0) {
		fail("rounded value too large to represent")
	}
	return Float(f)
}

// plainInt returns an int that may be a bool as an int, True as 1.
func plainInt(v Value) Value {
	if v.k == kBool {
		return Int(v.n)
	}
	return v
}

func roundInt(b *big.Int, digits int64) Value {
	if -digits > maxDigits {
		return Int(0)
	}
	neg := b.Sign() < 0
	v := roundHalfEven(new(big.Int).Abs(b), -digits, true)
	if neg {
		return arith(opSub, Int(0), v)
	}
	return v
}

// roundHalfEven rounds b >= 0 to a multiple of 10**zeros, ties to even. exact is false
// when the rounded number is a little more than b.
func roundHalfEven(b *big.Int, zeros int64, exact bool) Value {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(zeros), nil)
	q, r := new(big.Int).QuoRem(b, unit, new(big.Int))
	c := r.Lsh(r, 1).Cmp(unit)
	if c > 0 || c == 0 && (!exact || q.Bit(0) == 1) {
		q.Add(q, big.NewInt(1))
	}
	return bigValue(q.Mul(q, unit))
}
