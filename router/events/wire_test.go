package events

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/router/kv"
)

var wireEvents = []kv.Event{
	{Kind: kv.EventStored, Hashes: []kv.SequenceHash{0x1122334455667788, 2}},
	{Kind: kv.EventStored, Tier: kv.TierCPU, HasParent: true, Parent: 2, Hashes: []kv.SequenceHash{3}},
	{Kind: kv.EventRemoved, Tier: kv.TierDisk, Hashes: []kv.SequenceHash{4}},
	{Kind: kv.EventCleared},
}

// The bytes that docs/protocol.md shows.
const (
	goldenHeader = "01" + "01" + "02" + "7231" + "0807060504030201" + "0500000000000000" + "00ca9a3b00000000" + "10"
	goldenEvents = "00" + "02" + "8877665544332211" + "0200000000000000" +
		"14" + "0200000000000000" + "01" + "0300000000000000" +
		"09" + "01" + "0400000000000000" +
		"02" + "00"
	goldenRequest      = `{"v":1,"relay":"r1","epoch":"0102030405060708","from":6}`
	goldenAnnouncement = `{"v":1,"worker":"w1","url":"http://w1:8000","relay":"r1","info":{"models":[{"id":"m"},{"id":"l","parent":"m"}],"engine":"vllm","capacity_tokens":400000,"max_num_seqs":128,"block_size":16},"ranks":[{"rank":0,"epoch":"0102030405060708","last_seq":5,"coverage":"partial","reason":"why","block_size":16,"blocks":2}]}`
)

func TestWire_GoldenDelta(t *testing.T) {
	msg := appendHeader(nil, kindDelta, "r1", 0x0102030405060708, 5, 1e9, 16)
	msg, rest := appendEvents(msg, wireEvents, maxMessage)
	if got := hex.EncodeToString(msg); got != goldenHeader+goldenEvents || rest != nil {
		t.Fatalf("delta\n got %s\nwant %s", got, goldenHeader+goldenEvents)
	}
	var d decoder
	h, err := d.open(msg)
	if err != nil {
		t.Fatal(err)
	}
	if string(h.relay) != "r1" || h.epoch != 0x0102030405060708 || h.seq != 5 || h.time != 1e9 || h.blockSize != 16 || h.kind != kindDelta {
		t.Fatalf("header = %+v", h)
	}
	events, err := d.readEvents()
	if err != nil || len(events) != len(wireEvents) {
		t.Fatalf("%v, %v", events, err)
	}
	for i, e := range events {
		want := wireEvents[i]
		if len(want.Hashes) == 0 {
			e.Hashes = nil
		}
		if !reflect.DeepEqual(e, want) {
			t.Errorf("event %d = %+v, want %+v", i, e, want)
		}
	}
}

func TestWire_DocsShowTheSameBytes(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{goldenHeader + "\n" + goldenEvents, goldenRequest} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("docs/protocol.md does not show %s", want)
		}
	}
	// The announcement is broken into lines there.
	flat := strings.NewReplacer("\n ", "", "\n", "").Replace(string(doc))
	if !strings.Contains(flat, goldenAnnouncement) {
		t.Errorf("docs/protocol.md does not show %s", goldenAnnouncement)
	}
}

func TestWire_GoldenState(t *testing.T) {
	msg := appendHeader(nil, kindState, "r1", 0x0102030405060708, 5, 0, 16)
	msg = appendChunk(msg, chunk{id: 7, i: 1, n: 2})
	msg, _ = appendEvents(msg, wireEvents[:1], 100)
	want := "0102027231" + "0807060504030201" + "0500000000000000" + "0000000000000000" + "10" +
		"0700000000000000" + "01" + "02" + "0002" + "8877665544332211" + "0200000000000000"
	if got := hex.EncodeToString(msg); got != want {
		t.Fatalf("chunk\n got %s\nwant %s", got, want)
	}
	var d decoder
	if _, err := d.open(msg); err != nil {
		t.Fatal(err)
	}
	if c, err := d.chunk(); err != nil || c != (chunk{7, 1, 2}) {
		t.Fatalf("%+v, %v", c, err)
	}
}

func TestWire_GoldenJSON(t *testing.T) {
	a := Announcement{
		V: 1, Worker: "w1", URL: "http://w1:8000", Relay: "r1",
		Info:  WorkerInfo{Models: []ModelInfo{{ID: "m"}, {ID: "l", Parent: "m"}}, Engine: "vllm", CapacityTokens: 400000, MaxNumSeqs: 128, BlockSize: 16},
		Ranks: []RankInfo{{Epoch: "0102030405060708", LastSeq: 5, Coverage: CoveragePartial, Reason: "why", BlockSize: 16, Blocks: 2}},
	}
	got, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != goldenAnnouncement {
		t.Fatalf("announcement\n got %s\nwant %s", got, goldenAnnouncement)
	}
	q, err := json.Marshal(stateRequest{V: 1, Relay: "r1", Epoch: "0102030405060708", From: 6})
	if err != nil || string(q) != goldenRequest {
		t.Fatalf("request %s, %v", q, err)
	}
}

func TestWire_RefusesOtherVersions(t *testing.T) {
	msg := appendHeader(nil, kindDelta, "r1", 1, 1, 0, 16)
	msg[0] = 2
	var d decoder
	if _, err := d.open(msg); !errors.Is(err, errVersion) {
		t.Fatalf("binary: %v", err)
	}
	f := func(text string, want error) {
		t.Helper()
		var a Announcement
		if err := decodeJSON([]byte(text), &a, &a.V); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
	f(`{"v":1,"worker":"w","from_the_future":[1]}`, nil)
	f(`{"v":2,"worker":"w"}`, errVersion)
	f(`{"v":2,"worker":{"name":"w"}}`, errVersion)
	f(`{"worker":"w"}`, errVersion)
	f(`{"v":1,"worker":7}`, errMessage)
	f(`nonsense`, errMessage)
}

func TestWire_CutsLongEvents(t *testing.T) {
	long := kv.Event{Kind: kv.EventStored}
	for i := range 1000 {
		long.Hashes = append(long.Hashes, kv.SequenceHash(i+1))
	}
	gone := kv.Event{Kind: kv.EventRemoved, Hashes: long.Hashes[:300]}
	events := []kv.Event{long, gone, {Kind: kv.EventCleared}}
	var got []kv.Event
	parts := 0
	for rest := events; len(rest) > 0; parts++ {
		var msg []byte
		msg, rest = appendEvents(nil, rest, 500)
		if len(msg) > 500 || len(msg) == 0 {
			t.Fatalf("part of %d bytes", len(msg))
		}
		d := decoder{b: msg}
		part, err := d.readEvents()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range part {
			n := len(got)
			switch {
			case n > 0 && e.Kind == kv.EventStored && got[n-1].Kind == kv.EventStored:
				last := got[n-1].Hashes
				if !e.HasParent || e.Parent != last[len(last)-1] {
					t.Fatalf("a cut event does not go on: %+v", e)
				}
				got[n-1].Hashes = append(last, e.Hashes...)
			case n > 0 && e.Kind == kv.EventRemoved && got[n-1].Kind == kv.EventRemoved:
				got[n-1].Hashes = append(got[n-1].Hashes, e.Hashes...)
			default:
				e.Hashes = append([]kv.SequenceHash(nil), e.Hashes...)
				got = append(got, e)
			}
		}
	}
	if !reflect.DeepEqual(got[:2], events[:2]) || got[2].Kind != kv.EventCleared || parts < 20 {
		t.Fatalf("%d parts do not make the events again", parts)
	}
	if len(events[0].Hashes) != 1000 {
		t.Fatal("the caller's events were changed")
	}
}

func TestSubjects_EncodeAnyID(t *testing.T) {
	s, err := newSubjects("", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.deltas("http://10.0.0.1:8000", 3), "warmroute.v1.default.kv.http=3A=2F=2F10=2E0=2E0=2E1=3A8000.3"; got != want {
		t.Errorf("deltas = %s, want %s", got, want)
	}
	if got, want := s.states("a b*>"), "warmroute.v1.default.state.a=20b=2A=3E.*"; got != want {
		t.Errorf("states = %s, want %s", got, want)
	}
	if got := s.workers(); got != "warmroute.v1.default.workers" {
		t.Errorf("workers = %s", got)
	}
	if encodeToken("") == encodeToken("=") {
		t.Error("two ids have one token")
	}
	for _, prefix := range []string{"a..b", "a b", ".", "a.*"} {
		if _, err := newSubjects(prefix, ""); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	if s, err := newSubjects("acme.llm", "eu west"); err != nil || s.workers() != "acme.llm.v1.eu=20west.workers" {
		t.Errorf("%v, %v", s, err)
	}
}

func FuzzWire(f *testing.F) {
	delta := appendHeader(nil, kindDelta, "r1", 1, 2, 3, 16)
	delta, _ = appendEvents(delta, wireEvents, maxMessage)
	f.Add(delta)
	replay := appendChunk(appendHeader(nil, kindReplay, "r1", 1, 2, 0, 16), chunk{1, 0, 1})
	f.Add(appendReplayed(replay, delta))
	state := appendChunk(appendHeader(nil, kindState, "r1", 1, 2, 0, 16), chunk{1, 0, 1})
	state, _ = appendEvents(state, wireEvents, maxMessage)
	f.Add(state)
	f.Fuzz(func(t *testing.T, msg []byte) {
		var d decoder
		h, err := d.open(msg)
		if err != nil {
			return
		}
		if h.kind == kindReplay {
			if _, err := d.chunk(); err != nil {
				return
			}
			for {
				inner, err := d.nextReplayed()
				if err != nil || inner == nil {
					return
				}
				var di decoder
				if _, err := di.open(inner); err == nil {
					_, _ = di.readEvents()
				}
			}
		}
		if h.kind == kindState {
			if _, err := d.chunk(); err != nil {
				return
			}
		}
		events, err := d.readEvents()
		if err != nil {
			return
		}
		hashes := 0
		for _, e := range events {
			hashes += len(e.Hashes)
		}
		if hashes*8 > len(msg) {
			t.Fatalf("%d hashes from %d bytes", hashes, len(msg))
		}
		// What was read is written as it reads.
		again, rest := appendEvents(nil, events, len(msg)+100)
		d2 := decoder{b: again}
		events2, err := d2.readEvents()
		if err != nil || rest != nil || !reflect.DeepEqual(events, events2) {
			t.Fatalf("%v then %v: %v", events, events2, err)
		}
	})
}
