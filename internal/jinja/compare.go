package jinja

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// maxNesting bounds the depth to which values are compared, hashed and printed.
// Python's own bound is its recursion limit of 1,000 calls.
const maxNesting = 900

func checkNesting(depth int) {
	if depth > maxNesting {
		failLimit("value is nested too deeply")
	}
}

func truth(v Value) bool {
	switch v.k {
	case kUndefined, kNone, kMissing:
		return false
	case kBool, kInt, kString, kList, kTuple:
		return v.n != 0
	case kFloat:
		return v.float() != 0
	case kDict, kView:
		return len(v.dict().entries) != 0
	case kRange:
		return v.rng().len() != 0
	}
	return true
}

// equal is a == b.
func (st *state) equal(a, b Value) bool { return st.equalDepth(a, b, 0) }

func (st *state) equalDepth(a, b Value, depth int) bool {
	if a.isNumber() && b.isNumber() {
		return compareNumbers(a, b) == 0
	}
	if a.k != b.k {
		return false
	}
	switch a.k {
	case kString:
		st.scan(int(min(a.n, b.n)))
		return a.str() == b.str()
	case kUndefined, kNone:
		return true
	case kList, kTuple:
		if a.n != b.n {
			return false
		}
		checkNesting(depth)
		st.charge(1 + int(a.n)/8)
		y := b.items()
		for i, x := range a.items() {
			if !st.equalDepth(x, y[i], depth+1) {
				return false
			}
		}
		return true
	case kDict:
		return a.p == b.p || st.equalDicts(a.dict(), b.dict(), depth)
	case kRange:
		return *a.rng() == *b.rng()
	case kView:
		return a.sub == b.sub && a.sub != viewValues && st.equalDicts(a.dict(), b.dict(), depth)
	}
	return a.p == b.p
}

func (st *state) equalDicts(a, b *Dict, depth int) bool {
	if len(a.entries) != len(b.entries) {
		return false
	}
	checkNesting(depth)
	st.charge(1 + len(a.entries)/8)
	for i := range a.entries {
		e := &a.entries[i]
		j := st.findKey(b, e.key)
		if j < 0 || !st.equalDepth(e.val, b.entries[j].val, depth+1) {
			return false
		}
	}
	return true
}

// compareNumbers is exact: no int is rounded to a float. NaN is unequal to all and
// returned as 2.
func compareNumbers(a, b Value) int {
	switch {
	case a.k == kFloat && b.k == kFloat:
		return compareFloats(a.float(), b.float())
	case a.k == kFloat:
		return -compareIntFloat(b, a.float())
	case b.k == kFloat:
		return compareIntFloat(a, b.float())
	case a.k == kBig || b.k == kBig:
		return toBig(a).Cmp(toBig(b))
	}
	switch {
	case a.n < b.n:
		return -1
	case a.n > b.n:
		return 1
	}
	return 0
}

func compareFloats(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	case a == b:
		return 0
	}
	return 2
}

func compareIntFloat(a Value, f float64) int {
	if math.IsNaN(f) || math.IsInf(f, 0) || a.k != kBig && a.n > -1<<53 && a.n < 1<<53 {
		if a.k == kBig {
			return compareFloats(0, f)
		}
		return compareFloats(float64(a.n), f)
	}
	return new(big.Float).SetInt(toBig(a)).Cmp(big.NewFloat(f))
}

// order is Python's a < b (-1), a == b (0), a > b (1), or 2 when neither holds.
// Types without an order are an error; op is the operator for its message.
func (st *state) order(a, b Value, op string) int { return st.orderDepth(a, b, op, 0) }

func (st *state) orderDepth(a, b Value, op string, depth int) int {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b)
	case a.k == kString && b.k == kString:
		st.scan(int(min(a.n, b.n)))
		return strings.Compare(a.str(), b.str())
	case a.k == b.k && a.isSeq():
		checkNesting(depth)
		x, y := a.items(), b.items()
		st.charge(1 + min(len(x), len(y))/8)
		for i := range min(len(x), len(y)) {
			if !st.equalDepth(x[i], y[i], depth+1) {
				return st.orderDepth(x[i], y[i], op, depth+1)
			}
		}
		return compareNumbers(Int(a.n), Int(b.n))
	}
	for _, v := range [...]Value{a, b} {
		if v.k == kUndefined {
			failUndefined(v)
		}
	}
	failf("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
	return 0
}

func failUndefined(v Value) {
	switch {
	case v.n == 0:
		fail("value is undefined")
	case v.sub == subUnsafe:
		failf("access to attribute '%s' is unsafe", v.str())
	}
	failf("'%s' is undefined", v.str())
}

// hashKey returns a text that is equal for two keys exactly if Python's == and hash
// are. Strings are keys of their own and do not come here on their own.
func hashKey(v Value) string { return string(appendHash(nil, v, 0)) }

func appendHash(dst []byte, v Value, depth int) []byte {
	switch v.k {
	case kNone:
		return append(dst, 'n')
	case kUndefined:
		return append(dst, 'u')
	case kBool, kInt:
		return strconv.AppendInt(append(dst, 'i'), v.n, 10)
	case kBig:
		return v.bigInt().Append(append(dst, 'i'), 62)
	case kFloat:
		if f := v.float(); f == math.Trunc(f) && !math.IsInf(f, 0) {
			return appendHash(dst, floatToInt(f), depth)
		}
		return binary.LittleEndian.AppendUint64(append(dst, 'f'), uint64(v.n))
	case kString:
		dst = strconv.AppendInt(append(dst, 's'), v.n, 10)
		return append(append(dst, ':'), v.str()...)
	case kTuple:
		checkNesting(depth)
		dst = strconv.AppendInt(append(dst, 't'), v.n, 10)
		for _, item := range v.items() {
			dst = append(appendHash(dst, item, depth+1), ',')
		}
		return dst
	case kList, kDict, kView:
		failf("unhashable type: '%s'", v.typeName())
	}
	return strconv.AppendUint(append(dst, 'p'), uint64(uintptr(v.p)), 16)
}

// findKey is d.findValue, counted as steps.
func (st *state) findKey(d *Dict, key Value) int {
	st.chargeHash(key, 0)
	if d.strs == nil && key.k != kString { // findValue hashes the others too
		for i := range d.entries {
			st.chargeHash(d.entries[i].key, 0)
		}
	}
	return d.findValue(key)
}

// setKey is d.setValue, counted as steps.
func (st *state) setKey(d *Dict, key, v Value) {
	st.chargeHash(key, 0)
	d.setValue(key, v)
}

// chargeHash counts the steps of hashing a key. A tuple may hold the same one many times.
func (st *state) chargeHash(key Value, depth int) {
	switch key.k {
	case kString:
		st.scan(int(key.n))
	case kTuple:
		checkNesting(depth)
		st.charge(1 + int(key.n)/8)
		for _, item := range key.items() {
			st.chargeHash(item, depth+1)
		}
	}
}

// contains is needle in v.
func (st *state) contains(v, needle Value) bool {
	switch v.k {
	case kString:
		if needle.k != kString {
			failf("'in <string>' requires string as left operand, not %s", needle.typeName())
		}
		st.scan(len(v.str()))
		return strings.Contains(v.str(), needle.str())
	case kDict:
		return st.findKey(v.dict(), needle) >= 0
	case kView:
		if v.sub == viewKeys {
			return st.findKey(v.dict(), needle) >= 0
		}
	case kUndefined:
		return false
	}
	it := st.iterate(v)
	for {
		x, ok := it.next(st)
		if !ok {
			return false
		}
		if st.equal(x, needle) {
			return true
		}
	}
}
