package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// stateMagic starts a state file; the digit is the version of what follows.
const stateMagic = "warmroute state 1\n"

var errStateFile = errors.New("not a state file of this version, or damaged")

// restored is what a state file says beside the blocks.
type restored struct {
	position kvwire.Position // the last batch that the blocks include
	lack     lack
	lost     uint64
}

func (s *stream) stateFile() string {
	return filepath.Join(s.cfg.StateDir, encodeToken(s.cfg.Worker)+"."+strconv.Itoa(s.rank)+".state")
}

// saveState writes the blocks and the position in the engine's stream, if they changed
// since the last time. The file is replaced as a whole or not at all.
func (s *stream) saveState() error {
	s.mu.Lock()
	if !s.mu.dirty || s.mu.shared || s.mu.last.Payload == nil || s.mu.resume != nil {
		s.mu.Unlock()
		return nil
	}
	s.mu.dirty = false
	data := s.encodeStateLocked()
	s.mu.Unlock()
	if err := replaceFile(s.stateFile(), data); err != nil {
		s.set(func(s *stream) { s.mu.dirty = true })
		return fmt.Errorf("save to state_dir: %w", err)
	}
	s.m.stateSaves.Inc()
	return nil
}

func replaceFile(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

const (
	nodeHasParent = 1 << iota
	nodeSilent
)

func (s *stream) encodeStateLocked() []byte {
	t := s.mu.tr
	p := s.mu.last.Position()
	b := make([]byte, 0, 256+64*len(t.nodes))
	b = append(b, stateMagic...)
	b = appendString(b, s.cfg.Worker)
	b = appendString(b, s.endpoint())
	b = binary.AppendUvarint(b, p.Seq)
	b = append(b, p.Digest[:]...)
	b = append(b, byte(s.mu.lack))
	b = binary.AppendUvarint(b, s.mu.lost)
	b = binary.AppendUvarint(b, uint64(t.blockSize))
	b = binary.AppendVarint(b, int64(t.group))
	orphans := byte(0)
	if t.stats.orphansLost || len(t.orphans.byHash) > 0 {
		orphans = 1 // they are not kept, so what waits for them stays unknown
	}
	b = append(b, orphans)
	b = binary.AppendUvarint(b, uint64(t.nextKey))
	b = binary.AppendUvarint(b, uint64(len(t.adapters)))
	for name, a := range t.adapters {
		b = appendString(b, name)
		b = binary.AppendUvarint(b, uint64(a.key))
		b = binary.AppendVarint(b, a.id)
		b = append(b, byte(btoi(a.hasID)))
	}
	count := 0
	for _, n := range t.nodes {
		count += btoi(!n.suspect)
	}
	b = binary.AppendUvarint(b, uint64(count))
	for h, n := range t.nodes {
		if n.suspect {
			continue
		}
		for _, v := range [...]uint64{uint64(h), uint64(n.seq), uint64(n.parentSeq), uint64(n.parent), n.seed} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		b = binary.LittleEndian.AppendUint32(b, n.adapter)
		for _, r := range n.refs {
			b = binary.LittleEndian.AppendUint16(b, r)
		}
		b = append(b, byte(btoi(n.hasParent)*nodeHasParent+btoi(n.silent)*nodeSilent))
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

const nodeBytes = 5*8 + 4 + 2*int(kv.Tiers) + 1

func btoi(v bool) int {
	if v {
		return 1
	}
	return 0
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// loadState reads the state file, if there is one. Its blocks are known from then on,
// without credit until the engine proves that it is still the same process.
func (s *stream) loadState() (*kvwire.Position, error) {
	data, err := os.ReadFile(s.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.decodeStateLocked(data); err != nil {
		s.mu.tr.Clear()
		return nil, fmt.Errorf("%s: %w", s.stateFile(), err)
	}
	if s.mu.resume == nil {
		return nil, nil
	}
	s.mu.lack = lackProof
	return &s.mu.resume.position, nil
}

func (s *stream) decodeStateLocked(data []byte) error {
	n := len(data) - 4
	if n < len(stateMagic) || string(data[:len(stateMagic)]) != stateMagic ||
		binary.LittleEndian.Uint32(data[n:]) != crc32.ChecksumIEEE(data[:n]) {
		return errStateFile
	}
	r := fileReader{b: data[len(stateMagic):n]}
	worker, endpoint := r.str(), r.str()
	if worker != s.cfg.Worker || endpoint != s.endpoint() {
		return nil // of another engine: nothing to restore
	}
	var re restored
	re.position.Seq = r.uvarint()
	copy(re.position.Digest[:], r.take(len(re.position.Digest)))
	re.lack, re.lost = lack(r.u8()), r.uvarint()
	t := s.mu.tr
	t.blockSize, t.group = int(r.uvarint()), int(r.varint())
	t.stats.orphansLost = r.u8() != 0
	t.nextKey = uint32(r.uvarint())
	for range min(r.uvarint(), maxAdapters) {
		name := r.str()
		t.adapters[name] = &adapter{key: uint32(r.uvarint()), id: r.varint(), hasID: r.u8() != 0}
	}
	count := r.uvarint()
	if r.bad || count*uint64(nodeBytes) != uint64(len(r.b)) {
		return errStateFile
	}
	for range count {
		h := kvwire.EngineHash(r.u64())
		n := node{
			seq: kv.SequenceHash(r.u64()), parentSeq: kv.SequenceHash(r.u64()),
			parent: kvwire.EngineHash(r.u64()), seed: r.u64(), suspect: true,
		}
		n.adapter = binary.LittleEndian.Uint32(r.take(4))
		for i := range n.refs {
			n.refs[i] = binary.LittleEndian.Uint16(r.take(2))
		}
		flags := r.u8()
		n.hasParent, n.silent = flags&nodeHasParent != 0, flags&nodeSilent != 0
		t.nodes[h] = n
	}
	s.mu.resume = &re
	return nil
}

// trustLocked gives the restored blocks their credit back: the engine has proved that
// nothing happened since. They are the state after delta 1, which is never sent.
func (s *stream) trustLocked() {
	t := s.mu.tr
	t.begin()
	for h, n := range t.nodes {
		n.suspect = false
		t.nodes[h] = n
		for tier := range kv.Tier(kv.Tiers) {
			if n.refs[tier] > 0 && !n.silent {
				t.hold(n, tier)
			}
		}
	}
	if s.mu.seq > 0 {
		s.newEpochLocked()
	}
	s.mu.seq, s.mu.sent, s.mu.ring.first = 1, 1, 2
	s.mu.lack, s.mu.lost = s.mu.resume.lack, s.mu.resume.lost
	s.mu.resume = nil
	s.log.Info("state restored from state_dir", "blocks", len(t.nodes))
}

// distrustLocked keeps the restored blocks for what their children may prove.
func (s *stream) distrustLocked() {
	for h, n := range s.mu.tr.nodes {
		n.refs = refs{}
		s.mu.tr.nodes[h] = n
	}
	s.mu.resume = nil
}

// fileReader reads a state file; bad is set instead of reading past its end.
type fileReader struct {
	b   []byte
	bad bool
}

func (r *fileReader) take(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return make([]byte, min(n, 64))
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *fileReader) u8() byte    { return r.take(1)[0] }
func (r *fileReader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *fileReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *fileReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *fileReader) str() string {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return ""
	}
	return string(r.take(int(n)))
}
