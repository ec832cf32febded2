package events

import (
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

var wireWarmUps = []kv.WarmUp{
	{ID: 1, Rank: kv.WorkerRank{ID: "w1"}, BlockSize: 16, Blocks: 300, Tail: 0x1122334455667788, Age: 50 * time.Millisecond},
	{ID: 7, Rank: kv.WorkerRank{ID: "w2", Rank: 3}, BlockSize: 64, Blocks: 2, Tail: 0x99, Sent: true, Age: 2 * time.Second},
	{ID: 9, Rank: kv.WorkerRank{ID: "w1"}, BlockSize: 16, Blocks: 1, Tail: 1, Sent: true, Done: true, Age: time.Minute},
}

var wireMeetings = []kv.Meeting{
	{Owner: "h:1", ID: 7},
	{Owner: "h:1", ID: 9, Ended: true, OK: true, Rank: kv.WorkerRank{ID: "w1", Rank: 1}, Cached: 4096, TTFT: 120 * time.Millisecond},
	{Owner: strings.Repeat("p", maxProxyID), ID: 1 << 60, Ended: true, Rank: kv.WorkerRank{ID: "w"}, Cached: -1},
}

// TestWarmUps_OnTheWire: docs/protocol.md shows these bytes.
func TestWarmUps_OnTheWire(t *testing.T) {
	msg := appendWarmUps(nil, wireWarmUps, maxMessage)
	const want = "0100000277310010ac0288776655443322113207010102773203400299000000000000" + "00d00f0903001001010000000000000" + "0e0d403"
	if got := hex.EncodeToString(msg); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	d := decoder{b: msg}
	if got, err := d.readWarmUps(); err != nil || !reflect.DeepEqual(got, wireWarmUps) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, m := range wireMeetings {
		d := decoder{b: appendMeeting(nil, m, 5)}
		if got, incarnation, err := d.readMeeting(); err != nil || got != m || incarnation != 5 {
			t.Errorf("%+v for %d, %v, want %+v", got, incarnation, err, m)
		}
	}
	// The newest are told where there is no room for all.
	many := slices.Repeat(wireWarmUps[1:2], kv.MaxWarmUps+5)
	many[len(many)-1].ID = 99
	d = decoder{b: appendWarmUps(nil, many, 4096)}
	got, err := d.readWarmUps()
	if n := len(got); err != nil || n == 0 || n > 4096/10 || got[n-1].ID != 99 {
		t.Errorf("%d in 4 KiB, %v", n, err)
	}
	d = decoder{b: appendWarmUps(nil, many, maxMessage)}
	if got, err = d.readWarmUps(); err != nil || len(got) != kv.MaxWarmUps {
		t.Errorf("%d at most, %v", len(got), err)
	}
}

func FuzzWarmUps(f *testing.F) {
	f.Add(appendWarmUps(appendHeader(nil, kindWarmUps, "p1", 1, 2, 0, 0), wireWarmUps, maxMessage))
	f.Add(appendMeeting(appendHeader(nil, kindMeeting, "p1", 1, 3, 0, 0), wireMeetings[0], 1))
	f.Add(appendMeeting(appendHeader(nil, kindMeeting, "p1", 1, 3, 0, 0), wireMeetings[1], 1))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var d decoder
		h, err := d.header(msg)
		if err != nil {
			return
		}
		if h.kind == kindMeeting {
			m, incarnation, err := d.readMeeting()
			if err != nil {
				return
			}
			again := decoder{b: appendMeeting(nil, m, incarnation)}
			if n, i, err := again.readMeeting(); err != nil || n != m || i != incarnation {
				t.Fatalf("%+v then %+v, %v", m, n, err)
			}
			return
		}
		all, err := d.readWarmUps()
		if len(all) > kv.MaxWarmUps || len(all)*10 > len(msg) {
			t.Fatalf("%d warm-ups from %d bytes", len(all), len(msg))
		}
		for _, w := range all {
			if w.ID == 0 || w.BlockSize <= 0 || w.Blocks <= 0 || w.Tail == 0 || w.Age < 0 || w.Age > maxWarmAge || w.Rank.ID == "" {
				t.Fatalf("%+v", w)
			}
		}
		if err == nil {
			again := decoder{b: appendWarmUps(nil, all, 2*maxMessage)}
			if n, err := again.readWarmUps(); err != nil || len(n) != len(all) || len(n) > 0 && !reflect.DeepEqual(n, all) {
				t.Fatalf("%+v then %+v, %v", all, n, err)
			}
		}
	})
}

// warmBook is one proxy's warm-ups as the exchange sees them.
type warmBook struct {
	mu     sync.Mutex
	own    []kv.WarmUp
	abroad map[string][]kv.WarmUp
	met    []kv.Meeting
}

func (w *warmBook) Outstanding(dst []kv.WarmUp) []kv.WarmUp {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(dst, w.own...)
}

func (w *warmBook) Elsewhere(peer string, all []kv.WarmUp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abroad == nil {
		w.abroad = map[string][]kv.WarmUp{}
	}
	w.abroad[peer] = all
}

func (w *warmBook) Met(m kv.Meeting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.met = append(w.met, m)
}

func (w *warmBook) set(own []kv.WarmUp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own = own
}

func (w *warmBook) of(peer string) []kv.WarmUp {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.abroad[peer]
}

func (w *warmBook) heard() []kv.Meeting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.met)
}

// TestWarmUps_OverNATS: two proxies on one server know each other's warm-ups and tell what
// becomes of them; a farewell ends it.
func TestWarmUps_OverNATS(t *testing.T) {
	s := natsServer(t, "127.0.0.1:0", nil)
	start := func(id string) (*warmBook, *Peers, func()) {
		nc, err := nats.Connect(s.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		book := &warmBook{}
		rt := router.New(router.Config{Index: index.NewSet(index.Config{}), Workers: &kv.Workers{}})
		p, err := NewPeers(PeersConfig{Conn: nc, Proxy: id, Load: rt, Warmups: book})
		if err != nil {
			t.Fatal(err)
		}
		return book, p, inBackground(t, p.Run)
	}
	a, ap, stopA := start("host-1:8000")
	b, bp, _ := start("host-2:8000")
	eventually(t, 10*time.Second, "the proxies hear each other", func() bool { return len(ap.Status()) == 1 && len(bp.Status()) == 1 })
	a.set(wireWarmUps)
	ap.Warmed()
	eventually(t, 10*time.Second, "the warm-ups", func() bool { return reflect.DeepEqual(b.of("host-1:8000"), wireWarmUps) })
	want := []kv.Meeting{{Owner: "host-1:8000", ID: 7}, {Owner: "host-1:8000", ID: 7, Ended: true, OK: true, Rank: kv.WorkerRank{ID: "w2", Rank: 3}, Cached: 100, TTFT: time.Second}}
	for _, m := range want {
		bp.Meet(m)
	}
	bp.Meet(kv.Meeting{Owner: "nobody", ID: 1})
	eventually(t, 10*time.Second, "the meetings", func() bool { return len(a.heard()) == 2 })
	if got := a.heard(); !reflect.DeepEqual(got, want) || len(b.heard()) != 0 {
		t.Errorf("heard %+v and %+v, want %+v", got, b.heard(), want)
	}
	a.set(nil)
	ap.Warmed()
	eventually(t, 10*time.Second, "that none is left", func() bool { return len(b.of("host-1:8000")) == 0 })
	a.set(wireWarmUps[:1])
	ap.Warmed()
	eventually(t, 10*time.Second, "another", func() bool { return len(b.of("host-1:8000")) == 1 })
	stopA()
	eventually(t, 10*time.Second, "the farewell", func() bool { return len(b.of("host-1:8000")) == 0 })
}

// TestWarmUps_LostListsHeal, meetings of an earlier life count for nobody, and what cannot
// be read is counted.
func TestWarmUps_LostListsHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		a, b := h.join("a"), h.join("b")
		time.Sleep(3 * time.Second)
		h.lose(1)
		a.warm.set(wireWarmUps)
		a.peers.Warmed()
		time.Sleep(time.Second)
		if got := b.warm.of("a"); got != nil {
			t.Errorf("b knows %+v", got)
		}
		h.lose(0)
		time.Sleep(3 * time.Second)
		if got := b.warm.of("a"); !reflect.DeepEqual(got, wireWarmUps) {
			t.Errorf("3 s after messages come through again b knows %+v", got)
		}
		f := func(data []byte, dropped float64, heard int) {
			t.Helper()
			count := a.peers.metrics.dropped.WithLabelValues("malformed")
			before := testutil.ToFloat64(count)
			a.queue <- &nats.Msg{Subject: "warmroute.v1.default.load.z", Data: data}
			time.Sleep(5 * time.Millisecond)
			if got := testutil.ToFloat64(count) - before; got != dropped || len(a.warm.heard()) != heard {
				t.Errorf("% x: %v dropped, %+v heard", data, got, a.warm.heard())
			}
		}
		head := func(seq uint64) []byte { return appendHeader(nil, kindMeeting, "z", 9, seq, 0, 0) }
		mine := kv.Meeting{Owner: "a", ID: 7}
		f(appendMeeting(head(1), mine, a.peers.incarnation), 0, 1)
		f(appendMeeting(head(2), mine, a.peers.incarnation-1), 0, 1)
		f(appendMeeting(head(3), kv.Meeting{Owner: "b", ID: 7}, a.peers.incarnation), 0, 1)
		f(append(appendMeeting(head(4), mine, 1), 0), 1, 1)
		f(head(4), 1, 1)
		f(append(appendHeader(nil, kindWarmUps, "z", 9, 4, 0, 0), 1, 0, 0), 1, 1)
		f(append(appendHeader(nil, kindWarmUps, "z", 9, 4, 0, 0), 1, 0, 0, 1, 'w', 0, 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1, 1) // no tail
		h.stop()
	})
}
