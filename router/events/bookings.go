package events

import (
	"encoding/binary"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	maxProxyID = 255 // bytes
	// maxBookings bounds what is taken of one proxy, and what is told of this one.
	maxBookings = 16 << 10
	// bookingRoom is more than one booking takes, with the name of its rank.
	bookingRoom = 10 + 1 + 3 + (2 + maxWorkerID + 2) + 4 + 4 + 8*kv.BookingMarks
	// envelopeRoom is more than the header and the chunk's place take.
	envelopeRoom = 3 + maxProxyID + 24 + 5 + 8 + 10
)

// The flags of one booking: phase in bits 0–1.
const (
	flagStreams = 1 << 2
	marksShift  = 3 // number of marks in bits 3–6
	marksBits   = 15
)

// appendBookings appends as many of the bookings as fit into room bytes, at least one,
// and returns those that did not fit. Ranks are numbered as they appear in a message;
// the name follows the first use of a number.
func appendBookings(dst []byte, bookings []kv.Booking, room int) ([]byte, []kv.Booking) {
	end := len(dst) + max(room, bookingRoom)
	var ranks map[kv.WorkerRank]uint64
	for i := range bookings {
		if end-len(dst) < bookingRoom {
			return dst, bookings[i:]
		}
		b := &bookings[i]
		if len(b.Rank.ID) > maxWorkerID || b.Rank.Rank >= maxRanks {
			continue // no peer would read it
		}
		dst = binary.AppendUvarint(dst, b.Lease)
		if b.Phase == kv.PhaseDone {
			dst = append(dst, byte(b.Phase))
			continue
		}
		n := 0
		for n < len(b.Marks) && b.Marks[n] != 0 {
			n++
		}
		flags := byte(b.Phase) | byte(n)<<marksShift
		if b.Streams {
			flags |= flagStreams
		}
		dst = append(dst, flags)
		if ranks == nil {
			ranks = map[kv.WorkerRank]uint64{}
		}
		dst = appendRank(dst, b.Rank, ranks)
		if b.Phase == kv.PhasePrefill {
			dst = binary.AppendUvarint(dst, uint64(b.Uncached))
		}
		dst = binary.AppendUvarint(dst, uint64(b.KV))
		for _, m := range b.Marks[:n] {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(m))
		}
	}
	return dst, nil
}

// readBookings appends the bookings to the end of the message to dst.
func (d *decoder) readBookings(dst []kv.Booking) ([]kv.Booking, error) {
	var ranks []kv.WorkerRank
	for read := 0; len(d.b) > 0; read++ {
		if read == maxBookings {
			return dst, errMessage
		}
		lease, ok := d.uvarint(1<<64 - 1)
		if !ok || lease == 0 || len(d.b) == 0 {
			return dst, errMessage
		}
		flags := d.b[0]
		d.b = d.b[1:]
		b := kv.Booking{Lease: lease, Phase: kv.Phase(flags & 3), Streams: flags&flagStreams != 0}
		if b.Phase == kv.PhaseDone && flags == byte(kv.PhaseDone) {
			dst = append(dst, b)
			continue
		}
		n := int(flags >> marksShift & marksBits)
		if b.Phase >= kv.PhaseDone || n > kv.BookingMarks || flags>>7 != 0 {
			return dst, errMessage
		}
		if b.Rank, ok = d.rank(&ranks); !ok || !d.tokens(&b) || len(d.b) < 8*n {
			return dst, errMessage
		}
		for i := range b.Marks[:n] {
			if b.Marks[i] = kv.SequenceHash(d.u64()); b.Marks[i] == 0 {
				return dst, errMessage
			}
		}
		dst = append(dst, b)
	}
	return dst, nil
}

// rank reads the number of a rank and, where it is new, its name.
func (d *decoder) rank(ranks *[]kv.WorkerRank) (r kv.WorkerRank, ok bool) {
	number, ok := d.uvarint(uint64(len(*ranks)))
	if !ok {
		return r, false
	}
	if number < uint64(len(*ranks)) {
		return (*ranks)[number], true
	}
	n, ok := d.uvarint(maxWorkerID)
	if !ok || n == 0 || uint64(len(d.b)) < n {
		return r, false
	}
	r.ID, d.b = string(d.b[:n]), d.b[n:]
	rank, ok := d.uvarint(maxRanks - 1)
	r.Rank = int(rank)
	*ranks = append(*ranks, r)
	return r, ok
}

// tokens reads the counts of b.
func (d *decoder) tokens(b *kv.Booking) (ok bool) {
	var n uint64
	if b.Phase == kv.PhasePrefill {
		if n, ok = d.uvarint(kv.MaxBookingTokens); !ok {
			return false
		}
		b.Uncached = int(n)
	}
	n, ok = d.uvarint(kv.MaxBookingTokens)
	b.KV = int(n)
	return ok
}
