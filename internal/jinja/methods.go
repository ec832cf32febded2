package jinja

import (
	"math"
	"slices"
	"unsafe"
)

// Methods of the built-in types that templates may call. Names that Python has and
// that are not here are unsupported: reading one gives something undefined.

var dictMethods = map[string]methodFn{
	"copy":   func(_ *state, d Value, a args) Value { a.want(0, 0); return d },
	"get":    dictGet,
	"items":  view(viewItems),
	"keys":   view(viewKeys),
	"values": view(viewValues),
}

// want checks the number of positional arguments and that there are no others.
func (a *args) want(least, most int) {
	if a.left() {
		fail("method takes no keyword arguments")
	}
	if len(a.pos) < least || len(a.pos) > most {
		failf("method takes %d to %d arguments, got %d", least, most, len(a.pos))
	}
}

// at returns positional argument i, or missing.
func (a *args) at(i int) Value {
	if i < len(a.pos) {
		return a.pos[i]
	}
	return missing
}

func dictGet(st *state, d Value, a args) Value {
	a.want(1, 2)
	if i := st.findKey(d.dict(), a.pos[0]); i >= 0 {
		return d.dict().entries[i].val
	}
	return opt(a.at(1), None())
}

func view(sub uint8) methodFn {
	return func(_ *state, d Value, a args) Value {
		a.want(0, 0)
		return Value{k: kView, p: d.p, sub: sub}
	}
}

var listMethods = map[string]methodFn{
	"copy": func(_ *state, l Value, a args) Value { a.want(0, 0); return l },
	"count": func(st *state, l Value, a args) Value {
		a.want(1, 1)
		n := 0
		for _, x := range l.items() {
			if st.equal(x, a.pos[0]) {
				n++
			}
		}
		return Int(int64(n))
	},
	"index": func(st *state, l Value, a args) Value {
		a.want(1, 3)
		from, to, _ := sliceBounds(int(l.n), opt(a.at(1), None()), opt(a.at(2), None()), None())
		i := slices.IndexFunc(l.items()[from:to], func(x Value) bool { return st.equal(x, a.pos[0]) })
		if i < 0 {
			fail("value is not in list")
		}
		return Int(int64(from + i))
	},
}

var loopMethods = map[string]methodFn{
	"cycle":   func(_ *state, l Value, a args) Value { return l.loop().cycle(a.pos) },
	"changed": func(st *state, l Value, a args) Value { return l.loop().hasChanged(st, a.pos) },
}

var floatMethods = map[string]methodFn{
	"is_integer": func(_ *state, f Value, a args) Value {
		a.want(0, 0)
		return Bool(f.float() == math.Trunc(f.float()) && !math.IsInf(f.float(), 0))
	},
}

// cyclerObj is jinja2's Cycler.
type cyclerObj struct {
	items []Value
	pos   int
}

func (v Value) cycler() *cyclerObj { return (*cyclerObj)(v.p) }

func (c *cyclerObj) current() Value { return c.items[c.pos] }

func newCycler(st *state, a args) Value {
	if len(a.pos) == 0 {
		fail("at least one item has to be provided")
	}
	return Value{k: kCycler, p: unsafe.Pointer(&cyclerObj{items: slices.Clone(a.pos)})}
}

var cyclerMethods = map[string]methodFn{
	"next": func(_ *state, v Value, a args) Value {
		a.want(0, 0)
		c := v.cycler()
		x := c.current()
		c.pos = (c.pos + 1) % len(c.items)
		return x
	},
	"reset": func(_ *state, v Value, a args) Value { a.want(0, 0); v.cycler().pos = 0; return None() },
}
