package prompt

// entryOverhead is what one cached entry takes beside its token ids, in bytes.
const entryOverhead = 160

// cache keeps engine tokens by the key of the whole canonical input, least recently
// used out first. It has no lock of its own.
type cache struct {
	max, bytes int64
	byKey      map[key]*entry
	ring       entry // ring.next is the most recently used
	evicted    func()
}

type entry struct {
	key        key
	tokens     Tokens
	prev, next *entry
}

func (e *entry) bytes() int64 { return int64(4*cap(e.tokens.IDs)) + entryOverhead }

func newCache(max int64, evicted func()) *cache {
	c := &cache{max: max, byKey: make(map[key]*entry), evicted: evicted}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
	return c
}

func (c *cache) get(k key) (Tokens, bool) {
	e, ok := c.byKey[k]
	if !ok {
		return Tokens{}, false
	}
	c.unlink(e)
	c.pushFront(e)
	return e.tokens, true
}

func (c *cache) put(k key, t Tokens) {
	if e, ok := c.byKey[k]; ok {
		c.drop(e)
	}
	e := &entry{key: k, tokens: t}
	if e.bytes() > c.max {
		c.evicted()
		return
	}
	c.byKey[k] = e
	c.pushFront(e)
	for c.bytes += e.bytes(); c.bytes > c.max; {
		c.drop(c.ring.prev)
		c.evicted()
	}
}

func (c *cache) drop(e *entry) {
	c.unlink(e)
	delete(c.byKey, e.key)
	c.bytes -= e.bytes()
}

func (c *cache) unlink(e *entry) { e.prev.next, e.next.prev = e.next, e.prev }

func (c *cache) pushFront(e *entry) {
	e.prev, e.next = &c.ring, c.ring.next
	e.prev.next, e.next.prev = e, e
}
