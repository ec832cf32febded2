package events

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/router/kv"
)

var wireBookings = []kv.Booking{
	{Lease: 7, Rank: kv.WorkerRank{ID: "w1"}, Streams: true, Uncached: 300, KV: 2100, Marks: [kv.BookingMarks]kv.SequenceHash{0x1122334455667788, 2}},
	{Lease: 8, Rank: kv.WorkerRank{ID: "w1"}, Phase: kv.PhaseDecode, KV: 5},
	{Lease: 300, Rank: kv.WorkerRank{ID: "w1", Rank: 3}, Phase: kv.PhaseDecode, Streams: true, KV: 0},
	{Lease: 6, Phase: kv.PhaseDone},
}

// The bytes that docs/protocol.md shows.
func TestBookings_Golden(t *testing.T) {
	msg, rest := appendBookings(appendHeader(nil, kindChanges, "p1", 0x0102030405060708, 5, 0, 0), wireBookings, maxMessage)
	want := "01050270310807060504030201050000000000000000000000000000000007140002773100ac02b4108877665544332211" +
		"02000000000000000801" + "0005" + "ac020501" + "027731" + "03" + "00" + "0602"
	if got := hex.EncodeToString(msg); got != want || rest != nil {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var d decoder
	h, err := d.header(msg)
	if err != nil || string(h.relay) != "p1" || h.epoch != 0x0102030405060708 || h.seq != 5 {
		t.Fatalf("%+v, %v", h, err)
	}
	got, err := d.readBookings(nil)
	if err != nil || !reflect.DeepEqual(got, wireBookings) {
		t.Errorf("%+v, %v", got, err)
	}
}

// What does not fit goes on in another message, and none is larger than allowed.
func TestBookings_Cut(t *testing.T) {
	var all []kv.Booking
	for i := range 1000 {
		b := wireBookings[i%3]
		b.Lease, b.Rank.ID = uint64(i)+1, strings.Repeat("w", 1+i%maxWorkerID)
		all = append(all, b)
	}
	const room = 4096
	var got []kv.Booking
	messages := 0
	for rest := all; len(rest) > 0; messages++ {
		var msg []byte
		msg, rest = appendBookings(nil, rest, room)
		if len(msg) > room {
			t.Fatalf("%d bytes", len(msg))
		}
		d := decoder{b: msg}
		var err error
		if got, err = d.readBookings(got); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(got, all) || messages < 10 {
		t.Errorf("%d bookings of %d in %d messages", len(got), len(all), messages)
	}
	long := []kv.Booking{{Lease: 1, Rank: kv.WorkerRank{ID: strings.Repeat("w", maxWorkerID+1)}}}
	if msg, rest := appendBookings(nil, long, room); len(msg) > 0 || rest != nil {
		t.Errorf("a worker id that nobody reads is sent: % x", msg)
	}
}

func FuzzBookings(f *testing.F) {
	changes, _ := appendBookings(appendHeader(nil, kindChanges, "p1", 1, 2, 0, 0), wireBookings, maxMessage)
	f.Add(changes)
	state := appendChunk(appendHeader(nil, kindLoad, "p1", 1, 3, 0, 0), chunk{1, 0, 1})
	state, _ = appendBookings(state, wireBookings, maxMessage)
	f.Add(state)
	f.Add(append(changes[:len(changes):len(changes)], 1, 0, 0, 255, 255, 255, 255, 15))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var d decoder
		h, err := d.header(msg)
		if err != nil {
			return
		}
		if h.kind == kindLoad {
			if _, err := d.chunk(); err != nil {
				return
			}
		}
		bookings, err := d.readBookings(nil)
		if len(bookings) > maxBookings || len(bookings)*2 > len(msg) {
			t.Fatalf("%d bookings from %d bytes", len(bookings), len(msg))
		}
		if err != nil {
			return
		}
		for _, b := range bookings {
			if b.Lease == 0 || b.Phase > kv.PhaseDone || b.KV < 0 || b.KV > kv.MaxBookingTokens || b.Uncached < 0 || b.Uncached > kv.MaxBookingTokens ||
				b.Phase != kv.PhaseDone && (b.Rank.ID == "" || b.Rank.Rank < 0 || b.Rank.Rank >= maxRanks) {
				t.Fatalf("%+v", b)
			}
		}
		// What was read is written as it reads.
		var again []kv.Booking
		for rest := bookings; len(rest) > 0; {
			var part []byte
			part, rest = appendBookings(nil, rest, maxMessage)
			d := decoder{b: part}
			if again, err = d.readBookings(again); err != nil {
				t.Fatalf("%v of %+v", err, rest)
			}
		}
		if len(again) != len(bookings) || len(again) > 0 && !reflect.DeepEqual(again, bookings) {
			t.Fatalf("%+v then %+v", bookings, again)
		}
	})
}
