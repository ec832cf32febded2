package prefill

import (
	"container/list"
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// maxProbes bounds the look-ups of one request: how many messages a next turn may add.
const maxProbes = 256

// group is what a turn was chosen to be.
type group uint8

const (
	groupNone    group = iota // no warm-up was worth it
	groupWarmed               // a warm-up was sent
	groupHoldout              // it would have been sent, but chance held it out
	groupClosed               // it would have been sent, but warming does not pay here
)

// conversation is a finished turn that waits for its next one. Guarded by Prefiller.mu.
type conversation struct {
	key      uint64
	messages int
	scope    scope
	served   kv.WorkerRank
	ended    time.Time     // when the turn ended
	thought  bool          // reasoning was seen since the last user's message
	place    *list.Element // nil once it is out of the table
	overdue  bool          // counted as one that did not come back

	job   *job // nil once the warm-up is over, or was never tried
	group group
	probe bool   // of a scope that is closed
	state string // for the header of the next turn
	open  bool   // outcome is still to come
	warm  warmth

	said   said         // of the finished turn's reply
	own    habit        // how the client wrote earlier replies back
	expect *expectation // of the next turn; nil until a warm-up is sent

	shared kv.WarmUp // as other proxies are told of it; ID 0: they are not
}

// warmth is what a warm-up that was sent should have left on its worker.
type warmth struct {
	worker    kv.WorkerRank
	blockSize int
	live      int             // tokens that were there before
	gain      int             // tokens beyond those
	tail      kv.SequenceHash // of the last whole block; blocks 0: not known
	blocks    int
	seconds   float64 // gain ÷ R
	busy      float64 // share of the last minute in which the worker was busy
	from      string  // what live rests on
	form      string  // tokens or chat
	cancelled bool
	partial   bool // it gave way and never went on
	counted   bool // what became of its tokens is in the counters
}

// table holds the open conversations by the hash of their messages, in the order in
// which their turns ended.
type table struct {
	byKey map[uint64]*conversation
	order [2]list.List // by conversation.overdue; oldest in front
	marks int64        // bytes of expectations
	gone  func(*conversation)
}

func (t *table) init() {
	t.byKey = map[uint64]*conversation{}
	t.order[0].Init()
	t.order[1].Init()
}

func (t *table) list(c *conversation) *list.List {
	if c.overdue {
		return &t.order[1]
	}
	return &t.order[0]
}

func (t *table) add(c *conversation) {
	t.byKey[c.key] = c
	c.place = t.list(c).PushBack(c)
}

func (t *table) remove(c *conversation) {
	delete(t.byKey, c.key)
	t.list(c).Remove(c.place)
	c.place = nil
	t.marks -= c.expect.size()
	if t.gone != nil {
		t.gone(c)
	}
}

// expect keeps what a warm-up takes for granted of a conversation's next turn.
func (t *table) expect(c *conversation, x *expectation) {
	if c.place == nil {
		return // it has left the table
	}
	t.marks -= c.expect.size()
	if t.marks+x.size() > maxMarks {
		x.marks = nil
	}
	t.marks += x.size()
	c.expect = x
}

// late moves a conversation to those that are not expected back.
func (t *table) late(c *conversation) {
	t.list(c).Remove(c.place)
	c.overdue = true
	c.place = t.list(c).PushBack(c)
}

// oldest returns the open conversation whose turn ended first, nil for none.
func (t *table) oldest() *conversation {
	for i := range t.order {
		if e := t.order[1-i].Front(); e != nil {
			return e.Value.(*conversation)
		}
	}
	return nil
}

// find returns the conversation that a request continues: sums are the hashes of its
// first 1, 2, … messages.
func (t *table) find(sums []uint64) *conversation {
	last := len(sums) - 2 // messages of the longest candidate
	for n := last; n > 0 && n > last-maxProbes; n-- {
		if c := t.byKey[sums[n-1]]; c != nil && c.messages == n {
			return c
		}
	}
	return nil
}

// identity is what tells two conversations with equal messages apart.
type identity struct {
	model, key string
	ns         kv.Namespace
}

// sums appends the hash of each leading part of the messages of v, which was parsed from
// body. Messages count as they were written: a client repeats its history verbatim.
func sums(dst []uint64, seed maphash.Seed, id identity, body []byte, v *openai.Request) []uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, s := range [...]string{id.model, id.key, id.ns.LoRA, id.ns.Salt} {
		writeLength(&h, len(s))
		h.WriteString(s)
	}
	for i := range v.Messages {
		m := v.Messages[i].Of(body)
		writeLength(&h, len(m))
		h.Write(m)
		dst = append(dst, h.Sum64())
	}
	return dst
}

func writeLength(h *maphash.Hash, n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
}
