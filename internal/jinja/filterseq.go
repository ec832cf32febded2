package jinja

import (
	"slices"
	"strings"
	"unicode"
)

// attrGetter returns the function behind attribute="a.b.0" of many filters: a path of
// items or attributes. Without an attribute it returns its argument.
func (st *state) attrGetter(attribute Value) func(Value) Value {
	if attribute.k == kMissing || attribute.k == kNone {
		return func(v Value) Value { return v }
	}
	parts := st.attributePath(attribute)
	return func(v Value) Value {
		st.charge(len(parts) / 4)
		for _, part := range parts {
			v = st.item(v, part)
		}
		return v
	}
}

func (st *state) attributePath(attribute Value) []Value {
	if attribute.k != kString {
		return []Value{attribute}
	}
	st.charge(int(attribute.n) / 16)
	var parts []Value
	for name := range strings.SplitSeq(attribute.str(), ".") {
		part := String(name)
		if name != "" && strings.IndexFunc(name, func(r rune) bool { return !unicode.IsDigit(r) }) < 0 {
			if n, err := parseInt(name, 10); err == nil {
				part = n
			}
		}
		parts = append(parts, part)
	}
	return parts
}

func (st *state) ignoreCase(v Value) Value {
	if v.k == kString {
		st.charge(int(v.n) / stepBytes)
		return String(lower(v.str()))
	}
	return v
}

// keyGetter is attrGetter followed by lower-casing unless caseSensitive.
func (st *state) keyGetter(attribute, caseSensitive Value) func(Value) Value {
	get := st.attrGetter(attribute)
	if optBool(caseSensitive) {
		return get
	}
	return func(v Value) Value { return st.ignoreCase(get(v)) }
}

// mapEmpty reports whether map, select and reject yield nothing at once.
func mapEmpty(v Value) bool { return !truth(v) }

func empty(*state) (Value, bool) { return Value{}, false }

func filterMap(st *state, v Value, a args) Value {
	a.pos, a.kw = slices.Clone(a.pos), slices.Clone(a.kw)
	if mapEmpty(v) {
		return generator(empty)
	}
	var it iter
	var f func(*state, Value) Value
	return generator(func(st *state) (Value, bool) {
		if f == nil {
			it, f = st.iterate(v), st.mapper(a)
		}
		x, ok := it.next(st)
		if !ok {
			return Value{}, false
		}
		return f(st, x), true
	})
}

func (st *state) mapper(a args) func(*state, Value) Value {
	if attribute, ok := a.pop("attribute"); ok && len(a.pos) == 0 {
		def, _ := a.pop("default")
		if a.left() {
			fail("unexpected keyword argument")
		}
		parts := st.attributePath(attribute)
		return func(st *state, v Value) Value {
			st.charge(len(parts) / 4)
			for _, part := range parts {
				v = st.item(v, part)
				if v.k == kUndefined && def.k != kUndefined && def.k != kNone {
					v = def
				}
			}
			return v
		}
	}
	if len(a.pos) == 0 {
		fail("map requires a filter argument")
	}
	d, ok := Value{}, false
	var def filterDef
	if d = a.pos[0]; d.k == kString {
		def, ok = filters[d.str()]
	}
	if !ok {
		fail("map: no filter of that name")
	}
	rest := args{pos: a.pos[1:]}
	return func(st *state, v Value) Value {
		rest.kw = slices.Clone(a.kw)
		return def.apply(st, v, rest)
	}
}

// selector is select, reject, selectattr or rejectattr.
func selector(keep, byAttr bool) func(st *state, v Value, a args) Value {
	return func(st *state, v Value, a args) Value {
		a.pos, a.kw = slices.Clone(a.pos), slices.Clone(a.kw)
		if mapEmpty(v) {
			return generator(empty)
		}
		var it iter
		var ok func(*state, Value) bool
		return generator(func(st *state) (Value, bool) {
			if ok == nil {
				it, ok = st.iterate(v), st.chooser(a, byAttr)
			}
			for {
				x, more := it.next(st)
				if !more {
					return Value{}, false
				}
				if ok(st, x) == keep {
					return x, true
				}
			}
		})
	}
}

// chooser returns the condition that the arguments of select or selectattr name.
func (st *state) chooser(a args, byAttr bool) func(*state, Value) bool {
	get := func(v Value) Value { return v }
	if byAttr {
		if len(a.pos) == 0 {
			fail("missing parameter for attribute name")
		}
		get = st.attrGetter(a.pos[0])
		a.pos = a.pos[1:]
	}
	if len(a.pos) == 0 {
		return func(_ *state, v Value) bool { return truth(get(v)) }
	}
	var def testDef
	ok := false
	if name := a.pos[0]; name.k == kString {
		def, ok = tests[name.str()]
	}
	if !ok {
		fail("select: no test of that name")
	}
	rest := args{pos: a.pos[1:], kw: a.kw}
	return func(st *state, v Value) bool {
		st.charge(1)
		return def.apply(st, get(v), rest)
	}
}

func filterUnique(st *state, v Value, a []Value) Value {
	get := st.keyGetter(a[1], a[0])
	it := st.iterate(v)
	seen := NewDict(8)
	return generator(func(st *state) (Value, bool) {
		for {
			x, ok := it.next(st)
			if !ok {
				return Value{}, false
			}
			if key := get(x); st.findKey(seen, key) < 0 {
				seen.add(key, Value{})
				return x, true
			}
		}
	})
}

// sortBy sorts items by keys, which it changes too. It is stable in both directions.
func (st *state) sortBy(items, keys []Value, reverse bool) []Value {
	st.charge(len(items))
	at := make([]int, len(items))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int {
		st.charge(1)
		c := st.order(keys[i], keys[j], "<")
		if c == 2 {
			c = 0
		}
		if reverse {
			c = -c
		}
		return c
	})
	sorted := make([]Value, len(items))
	for i, from := range at {
		sorted[i] = items[from]
	}
	return sorted
}

func filterSort(st *state, v Value, a []Value) Value {
	var gets []func(Value) Value
	if a[2].k == kString {
		for name := range strings.SplitSeq(a[2].str(), ",") {
			gets = append(gets, st.keyGetter(String(name), a[1]))
		}
	} else {
		gets = append(gets, st.keyGetter(a[2], a[1]))
	}
	items := st.collect(v)
	keys := make([]Value, len(items))
	for i, item := range items {
		st.charge(1 + len(gets)/8)
		key := make([]Value, len(gets))
		for j, get := range gets {
			key[j] = get(item)
		}
		keys[i] = List(key)
	}
	return List(st.sortBy(items, keys, optBool(a[0])))
}

func filterDictsort(st *state, v Value, a []Value) Value {
	by := 0
	switch want := opt(a[1], String("key")); {
	case want.k == kString && want.str() == "value":
		by = 1
	case want.k != kString || want.str() != "key":
		fail(`You can only sort by either "key" or "value"`)
	}
	if v.k == kUndefined {
		failUndefined(v)
	}
	if v.k != kDict {
		failf("'%s' object has no attribute 'items'", v.typeName())
	}
	items := st.collect(Value{k: kView, p: v.p, sub: viewItems})
	keys := make([]Value, len(items))
	for i, item := range items {
		if keys[i] = item.items()[by]; !optBool(a[0]) {
			keys[i] = st.ignoreCase(keys[i])
		}
	}
	return List(st.sortBy(items, keys, optBool(a[2])))
}

func filterGroupby(st *state, v Value, a []Value) Value {
	parts := st.attributePath(a[0])
	get := func(item Value) Value {
		st.charge(len(parts) / 4)
		for _, part := range parts {
			item = st.item(item, part)
			if item.k == kUndefined && a[1].k != kMissing && a[1].k != kNone {
				item = a[1]
			}
		}
		return item
	}
	key := func(item Value) Value {
		if optBool(a[2]) {
			return get(item)
		}
		return st.ignoreCase(get(item))
	}
	items := st.collect(v)
	keys := make([]Value, len(items))
	for i, item := range items {
		keys[i] = key(item)
	}
	var groups []Value
	sorted := st.sortBy(items, keys, false)
	for start := 0; start < len(sorted); {
		end := start + 1
		for end < len(sorted) && st.equal(key(sorted[end]), key(sorted[start])) {
			end++
		}
		g := tuple([]Value{get(sorted[start]), List(sorted[start:end])})
		g.sub = subGroup
		groups = append(groups, g)
		start = end
	}
	return List(groups)
}

func filterMin(st *state, v Value, a []Value) Value { return st.extreme(v, a, -1, "<") }

func filterMax(st *state, v Value, a []Value) Value { return st.extreme(v, a, 1, ">") }

func (st *state) extreme(v Value, a []Value, sign int, op string) Value {
	get := st.keyGetter(a[1], a[0])
	it := st.iterate(v)
	best, ok := it.next(st)
	if !ok {
		return Value{}
	}
	key := get(best)
	for {
		x, ok := it.next(st)
		if !ok {
			return best
		}
		if k := get(x); st.order(k, key, op) == sign {
			best, key = x, k
		}
	}
}

func filterSum(st *state, v Value, a []Value) Value {
	get := st.attrGetter(a[0])
	total := opt(a[1], Int(0))
	if total.k == kString {
		fail("sum() can't sum strings [use ''.join(seq) instead]")
	}
	it := st.iterate(v)
	for {
		x, ok := it.next(st)
		if !ok {
			return total
		}
		total = st.add(total, get(x))
	}
}

func filterBatch(st *state, v Value, a []Value) Value {
	it := st.iterate(v)
	size := a[0]
	return generator(func(st *state) (Value, bool) {
		var row []Value
		for !st.equal(Int(int64(len(row))), size) || len(row) == 0 {
			x, ok := it.next(st)
			if !ok {
				break
			}
			row = append(row, x)
		}
		if len(row) == 0 {
			return Value{}, false
		}
		if fill := opt(a[1], None()); fill.k != kNone {
			st.bound(24 * wantInt(size))
			st.charge(wantInt(size) / 8)
			for len(row) < wantInt(size) {
				row = append(row, fill)
			}
		}
		return List(row), true
	})
}

func filterSlice(st *state, v Value, a []Value) Value {
	seq, n := st.collect(v), wantInt(a[0])
	if n == 0 {
		fail("integer division or modulo by zero")
	}
	i, at := 0, 0
	return generator(func(*state) (Value, bool) {
		if i >= n {
			return Value{}, false
		}
		size := len(seq) / n
		if i < len(seq)%n {
			size++
		}
		row := slices.Clone(seq[at : at+size])
		if fill := opt(a[1], None()); fill.k != kNone && i >= len(seq)%n {
			row = append(row, fill)
		}
		at += size
		i++
		return List(row), true
	})
}
