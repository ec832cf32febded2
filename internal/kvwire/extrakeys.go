package kvwire

import (
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// extraKeys reads what vLLM hashes with each block besides its tokens: the LoRA name,
// pairs of a content identifier and its offset, the cache salt (first block of a prompt
// only) and digests of prompt embeddings.
//
// Old releases send identifiers as bare strings, which in the first block look like a
// salt. There the last string counts as the salt: a prompt's identity ends before its
// first image anyway, so taking one for the other gives no credit, never a false one.
func (d *Decoder) extraKeys(p []byte, e *Event, b *Batch) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return err
	}
	from := len(b.arena.blocks)
	for i := range min(int(n), len(e.Hashes)) {
		var mm []uint64
		if mm, p, err = d.blockKeys(p, e, b, i == 0 && !e.HasParent); err != nil {
			return err
		}
		b.arena.blocks = append(b.arena.blocks, mm)
	}
	e.setMM(b, from)
	return nil
}

// setMM makes what the arena has from index from on the content of e's blocks, the last
// of which may have none.
func (e *Event) setMM(b *Batch, from int) {
	blocks := b.arena.blocks
	for len(blocks)-from < len(e.Hashes) {
		blocks = append(blocks, nil)
	}
	b.arena.blocks = blocks
	if blocks = blocks[from:len(blocks):len(blocks)]; slices.ContainsFunc(blocks, func(mm []uint64) bool { return mm != nil }) {
		e.MM = blocks
	}
}

// blockKeys reads the extra keys of one block; first is whether it begins a prompt.
func (d *Decoder) blockKeys(p []byte, e *Event, b *Batch, first bool) (mm []uint64, rest []byte, err error) {
	if msgp.IsNil(p) {
		return nil, p[1:], nil
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, p, err
	}
	from := len(b.arena.mm)
	add := func(h uint64) { b.arena.mm = append(b.arena.mm, h) }
	loraSeen := e.LoRAName == ""
	var last []byte // a string that is a salt if no other follows
	for range n {
		switch msgp.NextType(p) {
		case msgp.StrType:
			var s []byte
			if s, p, err = msgp.ReadStringZC(p); err != nil {
				return nil, p, err
			}
			if !loraSeen && string(s) == e.LoRAName {
				loraSeen = true
				continue
			}
			if len(s) == 0 || string(s) == e.Salt {
				continue
			}
			if last != nil {
				add(mmHash(last))
			}
			last = s
		case msgp.ArrayType:
			var m uint32
			if m, p, err = msgp.ReadArrayHeaderBytes(p); err != nil {
				return nil, p, err
			}
			for j := range m {
				if j > 0 { // the offset, which the position in the tokens already tells
					p, err = msgp.Skip(p)
				} else {
					var h uint64
					h, p, err = contentHash(p)
					add(h)
				}
				if err != nil {
					return nil, p, err
				}
			}
		case msgp.NilType:
			p = p[1:]
		default:
			var h uint64
			if h, p, err = contentHash(p); err != nil {
				return nil, p, err
			}
			add(h)
		}
	}
	if last != nil {
		if first {
			e.Salt = d.intern(last)
		} else {
			add(mmHash(last))
		}
	}
	return b.mmFrom(from), p, nil
}

// mmFrom returns the content hashes that the arena has from index from on, ascending;
// nil for none.
func (b *Batch) mmFrom(from int) []uint64 {
	if len(b.arena.mm) == from {
		return nil
	}
	mm := b.arena.mm[from:len(b.arena.mm):len(b.arena.mm)]
	slices.Sort(mm)
	return mm
}

// mmInfos reads [{"mm_objects": [{"mm_hash": n, ...}, ...]} or nil, ...], one a block.
func (d *Decoder) mmInfos(p []byte, e *Event, b *Batch) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return err
	}
	from := len(b.arena.blocks)
	for range min(int(n), len(e.Hashes)) {
		start := len(b.arena.mm)
		if p, err = eachValue(p, "mm_objects", func(p []byte) ([]byte, error) {
			m, p, err := msgp.ReadArrayHeaderBytes(p)
			for i := uint32(0); i < m && err == nil; i++ {
				p, err = eachValue(p, "mm_hash", func(p []byte) ([]byte, error) {
					h, p, err := contentHash(p)
					b.arena.mm = append(b.arena.mm, h)
					return p, err
				})
			}
			return p, err
		}); err != nil {
			return err
		}
		b.arena.blocks = append(b.arena.blocks, b.mmFrom(start))
	}
	e.setMM(b, from)
	return nil
}

// eachValue reads a map, or nil, and gives the value of name to f.
func eachValue(p []byte, name string, f func(p []byte) ([]byte, error)) ([]byte, error) {
	if msgp.IsNil(p) {
		return p[1:], nil
	}
	n, p, err := msgp.ReadMapHeaderBytes(p)
	for i := uint32(0); i < n && err == nil; i++ {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			break
		}
		if string(key) == name {
			p, err = f(p)
		} else {
			p, err = msgp.Skip(p)
		}
	}
	return p, err
}
