package kvwire

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/tinylib/msgp/msgp"
	"github.com/warmroute/warmroute/router/kv"
)

// arrayHeader reads the length of an array of what, of which each element is at least
// one byte, so that a false length cannot reserve memory.
func arrayHeader(p []byte, what string, limit int) (n int, rest []byte, err error) {
	if msgp.NextType(p) != msgp.ArrayType {
		return 0, p, errValue
	}
	u, rest, err := msgp.ReadArrayHeaderBytes(p)
	switch {
	case err != nil:
		return 0, p, err
	case int64(u) > int64(limit):
		return 0, p, fmt.Errorf("%w: an event of %d %s, at most %d are taken", errLimit, u, what, limit)
	case int64(u) > int64(len(rest)):
		return 0, p, msgp.ErrShortBytes
	}
	return int(u), rest, nil
}

// readToken reads a token id. One that is negative or wider than 32 bits is refused:
// cut to 32 bits it would be another token.
func readToken(p []byte) (uint32, []byte, error) {
	if len(p) >= 5 { // the forms that tokens nearly always have
		switch c := p[0]; {
		case c < 0x80:
			return uint32(c), p[1:], nil
		case c == 0xcd:
			return uint32(binary.BigEndian.Uint16(p[1:])), p[3:], nil
		case c == 0xce:
			return binary.BigEndian.Uint32(p[1:]), p[5:], nil
		}
	}
	v, rest, err := readInt(p)
	if err == nil && (v < 0 || v > math.MaxUint32) {
		err = errValue
	}
	return uint32(v), rest, err
}

// readInt reads an integer of any width that int64 can hold.
func readInt(p []byte) (int64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.IntType:
		return msgp.ReadInt64Bytes(p)
	case msgp.UintType:
		u, rest, err := msgp.ReadUint64Bytes(p)
		if err == nil && u > math.MaxInt64 {
			err = errValue
		}
		return int64(u), rest, err
	}
	if len(p) == 0 {
		return 0, p, msgp.ErrShortBytes
	}
	return 0, p, errValue
}

// readHash reads a block hash of any form.
func readHash(p []byte) (EngineHash, []byte, error) {
	h, rest, err := read64(p)
	return EngineHash(h), rest, err
}

// contentHash reads the identifier of an image or audio, or a digest of embeddings.
func contentHash(p []byte) (uint64, []byte, error) {
	if msgp.NextType(p) == msgp.StrType {
		s, rest, err := msgp.ReadStringZC(p)
		return mmHash(s), rest, err
	}
	return read64(p)
}

// read64 reads an integer as its 64 bits, or the last 8 bytes of a byte string.
func read64(p []byte) (uint64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.UintType:
		return msgp.ReadUint64Bytes(p)
	case msgp.IntType:
		i, rest, err := msgp.ReadInt64Bytes(p)
		return uint64(i), rest, err
	case msgp.BinType:
		s, rest, err := msgp.ReadBytesZC(p)
		if err != nil {
			return 0, p, err
		}
		if len(s) == 0 {
			return 0, p, errValue
		}
		var h uint64
		for _, c := range s[max(0, len(s)-8):] {
			h = h<<8 | uint64(c)
		}
		return h, rest, nil
	}
	if len(p) == 0 {
		return 0, p, msgp.ErrShortBytes
	}
	return 0, p, errValue
}

func mmHash(id []byte) uint64 { return kv.MMHash(unsafe.String(unsafe.SliceData(id), len(id))) }

// str reads a string of which few values exist.
func (d *Decoder) str(p []byte) (string, []byte, error) {
	if len(p) > 0 && msgp.NextType(p) != msgp.StrType {
		return "", p, errValue
	}
	s, rest, err := msgp.ReadStringZC(p)
	if err != nil {
		return "", p, err
	}
	return d.intern(s), rest, nil
}

// intern returns s as a string, the same one for equal bytes while few are known.
func (d *Decoder) intern(s []byte) string {
	if v, ok := d.names[string(s)]; ok {
		return v
	}
	if len(s) > maxName {
		return string(s)
	}
	if d.names == nil || len(d.names) >= maxNames {
		d.names = make(map[string]string)
	}
	v := string(s)
	d.names[v] = v
	return v
}

// mediums are the names that engines give to tiers. Case differs between them.
var mediums = []struct {
	name string
	tier kv.Tier
}{
	{"GPU", kv.TierGPU}, {"DEVICE", kv.TierGPU},
	{"CPU", kv.TierCPU}, {"CPU_PINNED", kv.TierCPU}, {"CPU_TIER1", kv.TierCPU}, {"HOST", kv.TierCPU},
	{"CPU_TIER2", kv.TierDisk}, {"STORAGE", kv.TierDisk}, {"DISK", kv.TierDisk}, {"NVME", kv.TierDisk}, {"FS", kv.TierDisk}, {"OBJ", kv.TierDisk},
	{"EXTERNAL", kv.TierDisk}, {"NETWORK", kv.TierDisk}, {"REMOTE", kv.TierDisk}, {"SHARED", kv.TierDisk},
}

// tierOf returns the tier that an engine calls medium. A name that is not known counts
// as the farthest tier, so that it is never credited as ready on the GPU.
func tierOf(medium string) (tier kv.Tier, known bool) {
	if medium == "" {
		return kv.TierGPU, true
	}
	for i := range mediums {
		if strings.EqualFold(mediums[i].name, medium) {
			return mediums[i].tier, true
		}
	}
	return kv.TierDisk, false
}
