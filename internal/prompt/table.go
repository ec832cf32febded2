package prompt

import "unsafe"

// table is a map by key whose memory can be told. It has no lock of its own.
type table[V any] struct {
	entries map[key]V
	most    int // entries that its memory has room for
}

func newTable[V any]() table[V] { return table[V]{entries: make(map[key]V)} }

// entryBytes is the memory of one entry. With entries that come and go a Go map takes up to
// 4.4 times what they do.
func (t *table[V]) entryBytes() int64 {
	var v V
	return int64(unsafe.Sizeof(key{})+unsafe.Sizeof(v)) * 9 / 2
}

// bytes is the memory of the map, which gives nothing back when its entries become fewer.
func (t *table[V]) bytes() int64 { return t.bytesWith(0) }

// bytesWith is bytes with n more entries.
func (t *table[V]) bytesWith(n int) int64 {
	return int64(max(t.most, len(t.entries)+n)) * t.entryBytes()
}

func (t *table[V]) get(k key) (V, bool) {
	v, ok := t.entries[k]
	return v, ok
}

func (t *table[V]) set(k key, v V) {
	t.entries[k] = v
	t.most = max(t.most, len(t.entries))
}

// remove deletes an entry. When few are left it moves them to a map of their size.
func (t *table[V]) remove(k key) {
	delete(t.entries, k)
	if n := len(t.entries); n < t.most/4 {
		kept := make(map[key]V, n)
		for k, v := range t.entries {
			kept[k] = v
		}
		t.entries, t.most = kept, n
	}
}
