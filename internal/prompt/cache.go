package prompt

// entryBytes is what one cached entry takes beside its token ids and its place in the table.
const entryBytes = 96

// cache keeps engine tokens by the key of the whole canonical input, least recently
// used out first. It has no lock of its own.
type cache struct {
	max     int64
	bytes   int64 // of all that is kept
	entries int64 // of the entries
	byKey   table[*entry]
	ring    entry // ring.next is the most recently used
	evicted func()
}

type entry struct {
	key        key
	tokens     Tokens
	prev, next *entry
}

func (e *entry) bytes() int64 { return heldBytes(int64(4*cap(e.tokens.IDs))) + entryBytes }

func newCache(max int64, evicted func()) *cache {
	c := &cache{max: max, byKey: newTable[*entry](), evicted: evicted}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
	return c
}

func (c *cache) get(k key) (Tokens, bool) {
	e, ok := c.byKey.get(k)
	if !ok {
		return Tokens{}, false
	}
	c.unlink(e)
	c.pushFront(e)
	return e.tokens, true
}

func (c *cache) put(k key, t Tokens) {
	if e, ok := c.byKey.get(k); ok {
		c.drop(e)
	}
	e := &entry{key: k, tokens: t}
	if e.bytes()+4*c.byKey.entryBytes() > c.max { // the table keeps room for three
		c.evicted()
		return
	}
	for c.entries+e.bytes()+c.byKey.bytesWith(1) > c.max {
		c.drop(c.ring.prev)
		c.evicted()
	}
	c.byKey.set(k, e)
	c.pushFront(e)
	c.entries += e.bytes()
	c.bytes = c.entries + c.byKey.bytes()
}

func (c *cache) drop(e *entry) {
	c.unlink(e)
	c.byKey.remove(e.key)
	c.entries -= e.bytes()
	c.bytes = c.entries + c.byKey.bytes()
}

func (c *cache) unlink(e *entry) { e.prev.next, e.next.prev = e.next, e.prev }

func (c *cache) pushFront(e *entry) {
	e.prev, e.next = &c.ring, c.ring.next
	e.prev.next, e.next.prev = e, e
}
