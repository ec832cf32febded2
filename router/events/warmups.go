package events

import (
	"encoding/binary"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// Warmups are the warm-ups of this proxy and what its peers tell of theirs.
type Warmups interface {
	// Outstanding appends those of this proxy whose next turn is still to come.
	Outstanding(dst []kv.WarmUp) []kv.WarmUp
	// Elsewhere replaces what a peer has told of its own; nil when it is gone.
	Elsewhere(peer string, all []kv.WarmUp)
	// Met takes what became of one of this proxy's at another.
	Met(m kv.Meeting)
}

const (
	warmBatch   = 50 * time.Millisecond // changes gather before they are told
	maxMeetings = 256                   // that wait to be told; more are dropped

	maxWarmAge     = time.Hour
	maxBlockTokens = 1 << 16
	maxWarmTTFT    = time.Hour
	// warmRoom is more than one warm-up takes, with the name of its rank.
	warmRoom = 10 + 1 + 3 + (2 + maxWorkerID + 2) + 3 + 4 + 8 + 4
)

// The flags of a warm-up, and of a meeting.
const (
	flagSent = 1 << 0
	flagDone = 1 << 1

	flagEnded = 1 << 0
	flagOK    = 1 << 1
)

// Warmed says that the warm-ups of this proxy have changed. It never waits.
func (p *Peers) Warmed() { notify(p.warmed) }

// Meet tells the owner of a warm-up what became of it. It never waits; what finds no room
// is dropped and counted.
func (p *Peers) Meet(m kv.Meeting) {
	select {
	case p.meetings <- m:
	default:
		p.drop("meetings_full")
	}
}

// sendWarmups tells all warm-ups of this proxy in one message, so that one that is lost or
// late does no harm.
func (p *Peers) sendWarmups() {
	if p.cfg.Warmups == nil || !p.up || len(p.peers) == 0 {
		return
	}
	p.ownWarm = p.cfg.Warmups.Outstanding(p.ownWarm[:0])
	if len(p.ownWarm) == 0 && !p.warmTold {
		return
	}
	p.warmTold = len(p.ownWarm) > 0
	msg := p.envelope(kindWarmUps)
	p.publish(appendWarmUps(msg, p.ownWarm, p.limit()-len(msg)))
}

// sendMeeting tells of a meeting, if its owner is still heard.
func (p *Peers) sendMeeting(m kv.Meeting) {
	o := p.peers[m.Owner]
	if o == nil || !p.up {
		p.drop("owner_gone")
		return
	}
	p.publish(appendMeeting(p.envelope(kindMeeting), m, o.incarnation))
}

// takeWarmups reads a message of either kind; false where it cannot be read.
func (p *Peers) takeWarmups(id string, h *header) (ok bool) {
	if h.kind == kindWarmUps {
		all, err := p.decoder.readWarmUps()
		if err == nil && p.cfg.Warmups != nil {
			p.cfg.Warmups.Elsewhere(id, all)
		}
		return err == nil
	}
	m, incarnation, err := p.decoder.readMeeting()
	if err == nil && p.cfg.Warmups != nil && m.Owner == p.cfg.Proxy && incarnation == p.incarnation {
		p.cfg.Warmups.Met(m)
	}
	return err == nil
}

// appendWarmUps appends as many of the warm-ups as fit into room bytes, the last ones.
func appendWarmUps(dst []byte, all []kv.WarmUp, room int) []byte {
	all = all[max(len(all)-min(kv.MaxWarmUps, room/warmRoom), 0):]
	ranks := map[kv.WorkerRank]uint64{}
	for i := range all {
		w := &all[i]
		if len(w.Rank.ID) > maxWorkerID || w.Rank.Rank >= maxRanks || w.BlockSize > maxBlockTokens {
			continue // no peer would read it
		}
		flags := byte(0)
		if w.Sent {
			flags |= flagSent
		}
		if w.Done {
			flags |= flagDone
		}
		dst = append(binary.AppendUvarint(dst, w.ID), flags)
		dst = appendRank(dst, w.Rank, ranks)
		dst = binary.AppendUvarint(dst, uint64(w.BlockSize))
		dst = binary.AppendUvarint(dst, uint64(w.Blocks))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(w.Tail))
		dst = binary.AppendUvarint(dst, uint64(min(max(w.Age, 0), maxWarmAge).Milliseconds()))
	}
	return dst
}

// appendRank appends the number of a rank and, where it is new, its name.
func appendRank(dst []byte, r kv.WorkerRank, ranks map[kv.WorkerRank]uint64) []byte {
	number, named := ranks[r]
	if named {
		return binary.AppendUvarint(dst, number)
	}
	number = uint64(len(ranks))
	ranks[r] = number
	dst = binary.AppendUvarint(dst, number)
	dst = binary.AppendUvarint(dst, uint64(len(r.ID)))
	dst = append(dst, r.ID...)
	return binary.AppendUvarint(dst, uint64(r.Rank))
}

// readWarmUps reads the warm-ups to the end of the message.
func (d *decoder) readWarmUps() (all []kv.WarmUp, err error) {
	var ranks []kv.WorkerRank
	for len(d.b) > 0 {
		w, ok := d.warmUp(&ranks)
		if !ok || len(all) == kv.MaxWarmUps {
			return nil, errMessage
		}
		all = append(all, w)
	}
	return all, nil
}

func (d *decoder) warmUp(ranks *[]kv.WorkerRank) (w kv.WarmUp, ok bool) {
	if w.ID, ok = d.uvarint(1<<64 - 1); !ok || w.ID == 0 || len(d.b) == 0 {
		return w, false
	}
	flags := d.b[0]
	d.b = d.b[1:]
	w.Sent, w.Done = flags&flagSent != 0, flags&flagDone != 0
	if w.Rank, ok = d.rank(ranks); !ok || flags > flagSent|flagDone {
		return w, false
	}
	size, ok := d.uvarint(maxBlockTokens)
	blocks, also := d.uvarint(kv.MaxBookingTokens)
	if !ok || !also || size == 0 || blocks == 0 || len(d.b) < 8 {
		return w, false
	}
	w.BlockSize, w.Blocks, w.Tail = int(size), int(blocks), kv.SequenceHash(d.u64())
	age, ok := d.uvarint(uint64(maxWarmAge.Milliseconds()))
	w.Age = time.Duration(age) * time.Millisecond
	return w, ok && w.Tail != 0
}

// appendMeeting appends a meeting for the incarnation of its owner that is known.
func appendMeeting(dst []byte, m kv.Meeting, incarnation uint64) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(m.Owner))), m.Owner...)
	dst = binary.LittleEndian.AppendUint64(dst, incarnation)
	dst = binary.AppendUvarint(dst, m.ID)
	if !m.Ended {
		return append(dst, 0)
	}
	flags := byte(flagEnded)
	if m.OK {
		flags |= flagOK
	}
	dst = appendRank(append(dst, flags), m.Rank, map[kv.WorkerRank]uint64{})
	dst = binary.AppendUvarint(dst, uint64(min(max(m.Cached, -1), kv.MaxBookingTokens-1)+1))
	return binary.AppendUvarint(dst, uint64(min(max(m.TTFT, 0), maxWarmTTFT).Microseconds()))
}

// readMeeting reads a meeting, which fills its message, and for which incarnation it is.
func (d *decoder) readMeeting() (m kv.Meeting, incarnation uint64, err error) {
	n, ok := d.uvarint(maxProxyID)
	if !ok || n == 0 || uint64(len(d.b)) < n+8 {
		return m, 0, errMessage
	}
	m.Owner, d.b = string(d.b[:n]), d.b[n:]
	incarnation = d.u64()
	if m.ID, ok = d.uvarint(1<<64 - 1); !ok || m.ID == 0 || incarnation == 0 || len(d.b) == 0 {
		return m, 0, errMessage
	}
	flags := d.b[0]
	d.b = d.b[1:]
	m.Ended, m.OK = flags&flagEnded != 0, flags&flagOK != 0
	if m.Ended {
		var ranks []kv.WorkerRank
		m.Rank, ok = d.rank(&ranks)
		cached, known := d.uvarint(kv.MaxBookingTokens)
		ttft, seen := d.uvarint(uint64(maxWarmTTFT.Microseconds()))
		m.Cached, m.TTFT = int(cached)-1, time.Duration(ttft)*time.Microsecond
		ok = ok && known && seen
	}
	if !ok || flags > flagEnded|flagOK || m.OK && !m.Ended || len(d.b) > 0 {
		return m, 0, errMessage
	}
	return m, incarnation, nil
}
