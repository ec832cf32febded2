package jinja

import (
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// maxRange is MAX_RANGE of jinja2's sandbox.
const maxRange = 100_000

// rangeObj is Python's range.
type rangeObj struct{ start, stop, step int64 }

func (v Value) rng() *rangeObj { return (*rangeObj)(v.p) }

func (r *rangeObj) len() int {
	n := int64(0)
	switch {
	case r.step > 0 && r.start < r.stop:
		n = (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		n = (r.start-r.stop-1)/-r.step + 1
	}
	return int(n)
}

func (r *rangeObj) appendRepr(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, "range("...), r.start, 10)
	dst = strconv.AppendInt(append(dst, ", "...), r.stop, 10)
	if r.step != 1 {
		dst = strconv.AppendInt(append(dst, ", "...), r.step, 10)
	}
	return append(dst, ')')
}

func newRange(args []Value) Value {
	if len(args) < 1 || len(args) > 3 {
		fail("range takes 1 to 3 arguments")
	}
	r := &rangeObj{step: 1}
	for _, a := range args {
		if !a.isInt() {
			failf("'%s' object cannot be interpreted as an integer", a.typeName())
		}
		if a.k == kBig || a.n > math.MaxInt64/4 || a.n < -math.MaxInt64/4 {
			failLimit("range is too big")
		}
	}
	switch r.stop = args[0].n; len(args) {
	case 3:
		r.step = args[2].n
		fallthrough
	case 2:
		r.start, r.stop = args[0].n, args[1].n
	}
	if r.step == 0 {
		fail("range() arg 3 must not be zero")
	}
	if r.len() > maxRange {
		failLimit("range is too big")
	}
	return Value{k: kRange, p: unsafe.Pointer(r)}
}

// iter walks over a Value. Lists, the common case, need no calls.
type iter struct {
	seq   []Value // kList, kTuple
	v     Value   // what is walked over otherwise
	i     int
	steps func(st *state) (Value, bool) // kIter
}

// iterObj is a generator of Python: filters such as map and select return one, which
// can be walked over once and has no length.
type iterObj struct {
	next func(st *state) (Value, bool)
}

func generator(next func(st *state) (Value, bool)) Value {
	return Value{k: kIter, p: unsafe.Pointer(&iterObj{next})}
}

func (st *state) iterate(v Value) iter {
	switch v.k {
	case kList, kTuple:
		st.charge(int(v.n) / 16)
		return iter{seq: v.items()}
	case kString, kDict, kView, kRange, kUndefined:
		n, _ := length(v)
		st.charge(n / 16)
		return iter{v: v}
	case kIter:
		return iter{v: v, steps: (*iterObj)(v.p).next}
	case kLoop:
		return iter{v: v, steps: v.loop().pairs}
	}
	failf("'%s' object is not iterable", v.typeName())
	return iter{}
}

func iterable(v Value) bool {
	switch v.k {
	case kList, kTuple, kString, kDict, kView, kRange, kUndefined, kIter, kLoop:
		return true
	}
	return false
}

func (it *iter) next(st *state) (Value, bool) {
	if it.seq != nil {
		if it.i >= len(it.seq) {
			return Value{}, false
		}
		it.i++
		return it.seq[it.i-1], true
	}
	return it.nextOther(st)
}

func (it *iter) nextOther(st *state) (v Value, ok bool) {
	switch it.v.k {
	case kIter, kLoop:
		st.charge(1)
		return it.steps(st)
	case kString:
		s := it.v.str()[it.i:]
		if s == "" {
			return Value{}, false
		}
		_, size := utf8.DecodeRuneInString(s)
		it.i += size
		return String(s[:size]), true
	case kDict:
		if d := it.v.dict(); it.i < len(d.entries) {
			v, ok = d.entries[it.i].key, true
		}
	case kView:
		if it.i < len(it.v.dict().entries) {
			v, ok = viewItem(st, it.v, it.i), true
		}
	case kRange:
		if r := it.v.rng(); it.i < r.len() {
			v, ok = Int(r.start+int64(it.i)*r.step), true
		}
	}
	it.i++
	return v, ok
}

// viewItem is item i of a dict's keys(), values() or items().
func viewItem(st *state, v Value, i int) Value {
	e := &v.dict().entries[i]
	switch v.sub {
	case viewKeys:
		return e.key
	case viewValues:
		return e.val
	}
	pair := st.newValues(2)
	pair[0], pair[1] = e.key, e.val
	return tuple(pair)
}

// collect is list(v) as a slice, which may be that of v itself.
func (st *state) collect(v Value) []Value {
	if v.isSeq() {
		return v.items()
	}
	var items []Value
	if n, ok := length(v); ok && n <= 64 {
		items = st.newValues(n)[:0]
	}
	it := st.iterate(v)
	for {
		x, ok := it.next(st)
		if !ok {
			return items
		}
		if len(items)&7 == 7 {
			st.charge(1)
		}
		items = append(items, x)
	}
}

// length is len(v); ok is false where Python raises TypeError.
func length(v Value) (n int, ok bool) {
	switch v.k {
	case kString:
		return utf8.RuneCountInString(v.str()), true
	case kList, kTuple:
		return int(v.n), true
	case kDict, kView:
		return len(v.dict().entries), true
	case kRange:
		return v.rng().len(), true
	case kUndefined:
		return 0, true
	}
	return 0, false
}

func (st *state) mustLength(v Value) int {
	if v.k == kLoop {
		return v.loop().length(st)
	}
	if v.k == kString {
		st.scan(int(v.n))
	}
	n, ok := length(v)
	if !ok {
		failf("object of type '%s' has no len()", v.typeName())
	}
	return n
}
