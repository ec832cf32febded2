package jinja

import "unsafe"

// indexFrom is the number of keys from which a Dict keeps hash indexes. Below it a
// scan is faster and needs no memory.
const indexFrom = 17

type entry struct{ key, val Value }

// Dict is a dict: keys in the order in which they were first set. It may be changed
// with Set until its Value is used by a Render.
type Dict struct {
	entries []entry
	strs    map[string]int32 // position of each str key; nil below indexFrom keys
	others  map[string]int32 // position of every other key by its hashKey
}

// NewDict returns an empty Dict with room for n keys.
func NewDict(n int) *Dict {
	return &Dict{entries: make([]entry, 0, n)}
}

// Value returns d as a Value. d must not be changed after that.
func (d *Dict) Value() Value { return Value{k: kDict, p: unsafe.Pointer(d)} }

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.entries) }

// Set sets key to v. A key that exists keeps its place, as in Python.
func (d *Dict) Set(key string, v Value) {
	if i := d.find(key); i >= 0 {
		d.entries[i].val = v
		return
	}
	d.add(String(key), v)
}

// Get returns the value of key and whether there is one.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].val, true
	}
	return Value{}, false
}

func (d *Dict) find(key string) int {
	if d.strs != nil {
		if i, ok := d.strs[key]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.entries {
		if e := &d.entries[i]; e.key.k == kString && e.key.str() == key {
			return i
		}
	}
	return -1
}

// findValue returns the place of a key of any hashable type, or -1.
func (d *Dict) findValue(key Value) int {
	if key.k == kString {
		return d.find(key.str())
	}
	h := hashKey(key)
	if d.strs != nil {
		if i, ok := d.others[h]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.entries {
		if e := &d.entries[i]; e.key.k != kString && hashKey(e.key) == h {
			return i
		}
	}
	return -1
}

// setValue is Set for a key of any hashable type.
func (d *Dict) setValue(key, v Value) {
	if i := d.findValue(key); i >= 0 {
		d.entries[i].val = v
		return
	}
	d.add(key, v)
}

func (d *Dict) add(key, v Value) {
	d.entries = append(d.entries, entry{key, v})
	switch n := len(d.entries); {
	case n == indexFrom:
		d.strs = make(map[string]int32, 2*indexFrom)
		d.others = make(map[string]int32)
		for i := range d.entries {
			d.index(i)
		}
	case n > indexFrom:
		d.index(n - 1)
	}
}

func (d *Dict) index(i int) {
	if k := d.entries[i].key; k.k == kString {
		d.strs[k.str()] = int32(i)
	} else {
		d.others[hashKey(k)] = int32(i)
	}
}
