package jinja

import (
	"math"
	"math/big"
	"unsafe"
)

type kind uint8

const (
	kUndefined kind = iota // p, n: name for messages, from the template
	kNone
	kBool   // n: 0 or 1
	kInt    // n
	kFloat  // n: IEEE bits
	kBig    // p: *big.Int, outside int64
	kString // p, n: bytes
	kList   // p, n: items
	kTuple  // p, n: items
	kDict   // p: *Dict
	kRange  // p: *rangeObj
	kView   // p: *Dict, sub: viewKeys, viewValues or viewItems
	kIter   // p: *iterObj, a one-shot iterator
	kNamespace
	kMacro
	kFunc
	kMethod
	kLoop
	kCycler
	kMissing // a slot that was never set; never seen by templates
)

// Values of Value.sub.
const (
	subMarkup  = 1 // kString: text that `safe` or `escape` made
	subGroup   = 1 // kTuple: has the names grouper and list
	subUnsafe  = 1 // kUndefined: an attribute that the sandbox hides
	viewKeys   = 1
	viewValues = 2
	viewItems  = 3
)

// Value is a Python value. The zero Value is Undefined. It is immutable: lists and
// dicts must not be changed once they are part of a Value that a Render uses.
type Value struct {
	p   unsafe.Pointer
	n   int64
	k   kind
	sub uint8
}

// None returns Python's None, JSON's null.
func None() Value { return Value{k: kNone} }

// Bool returns True or False.
func Bool(b bool) Value {
	if b {
		return Value{k: kBool, n: 1}
	}
	return Value{k: kBool}
}

// Int returns an int.
func Int(n int64) Value { return Value{k: kInt, n: n} }

// Float returns a float.
func Float(f float64) Value { return Value{k: kFloat, n: int64(math.Float64bits(f))} }

// String returns a str. Its bytes are not copied.
func String(s string) Value {
	return Value{k: kString, p: unsafe.Pointer(unsafe.StringData(s)), n: int64(len(s))}
}

// List returns a list of items, which it does not copy.
func List(items []Value) Value { return sequence(kList, items) }

func tuple(items []Value) Value { return sequence(kTuple, items) }

func sequence(k kind, items []Value) Value {
	return Value{k: k, p: unsafe.Pointer(unsafe.SliceData(items)), n: int64(len(items))}
}

func markup(s string) Value {
	v := String(s)
	v.sub = subMarkup
	return v
}

func undefined(name string) Value {
	v := String(name)
	v.k = kUndefined
	return v
}

func bigValue(b *big.Int) Value {
	if b.IsInt64() {
		return Int(b.Int64())
	}
	return Value{k: kBig, p: unsafe.Pointer(b)}
}

func (v Value) str() string      { return unsafe.String((*byte)(v.p), int(v.n)) }
func (v Value) items() []Value   { return unsafe.Slice((*Value)(v.p), int(v.n)) }
func (v Value) float() float64   { return math.Float64frombits(uint64(v.n)) }
func (v Value) bigInt() *big.Int { return (*big.Int)(v.p) }
func (v Value) dict() *Dict      { return (*Dict)(v.p) }

func (v Value) isSeq() bool    { return v.k == kList || v.k == kTuple }
func (v Value) isInt() bool    { return v.k == kInt || v.k == kBool || v.k == kBig }
func (v Value) isNumber() bool { return v.isInt() || v.k == kFloat }
func (v Value) isMarkup() bool { return v.k == kString && v.sub == subMarkup }

var missing = Value{k: kMissing}

// typeName is Python's name of the type of v, for messages.
func (v Value) typeName() string {
	switch v.k {
	case kUndefined:
		return "Undefined"
	case kNone:
		return "NoneType"
	case kBool:
		return "bool"
	case kInt, kBig:
		return "int"
	case kFloat:
		return "float"
	case kString:
		return "str"
	case kList:
		return "list"
	case kTuple:
		return "tuple"
	case kDict:
		return "dict"
	case kRange:
		return "range"
	case kView:
		return [...]string{"", "dict_keys", "dict_values", "dict_items"}[v.sub]
	case kIter:
		return "generator"
	case kNamespace:
		return "Namespace"
	case kMacro:
		return "Macro"
	case kLoop:
		return "LoopContext"
	}
	return "object"
}
