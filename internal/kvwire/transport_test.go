package kvwire

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// forms runs a test with both forms of replay answers.
func forms(t *testing.T, f func(t *testing.T, cfg PublisherConfig)) {
	for name, topicFrame := range map[string]bool{"old": false, "new": true} {
		t.Run("replay="+name, func(t *testing.T) {
			noGoroutineLeft(t)
			f(t, PublisherConfig{ReplayEndpoint: local, Topic: "kv@w1", TopicFrame: topicFrame})
		})
	}
}

func TestSubscriber_ReplaysFromZeroThenFollows(t *testing.T) {
	forms(t, func(t *testing.T, cfg PublisherConfig) {
		p, _ := startPublisher(t, cfg)
		publish(p, "a b c")
		s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr(), Topic: "kv@"})
		r.awaitLog(t, "connected a b c replayed")
		subscribed(t, p, 1)
		publish(p, "d e")
		r.awaitLog(t, "connected a b c replayed d e")
		if got := s.Stats(); got.Messages != 5 || got.Replayed != 3 || got.Missed != 0 || got.Connections != 1 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestSubscriber_ContinuesAfterABrokenConnection(t *testing.T) {
	forms(t, func(t *testing.T, cfg PublisherConfig) {
		p, _ := startPublisher(t, cfg)
		publish(p, "a b")
		_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
		r.awaitLog(t, "connected a b replayed")
		cut(p)
		publish(p, "c d")
		eventually(t, "c and d", func() bool { return r.heard("d") })
		if l := r.story(); l != "connected a b down continues c d" {
			t.Errorf("heard %q", l)
		}
	})
}

func TestSubscriber_TellsANewProcess(t *testing.T) {
	forms(t, func(t *testing.T, cfg PublisherConfig) {
		p, _ := startPublisher(t, cfg)
		publish(p, "a b c")
		_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
		r.awaitLog(t, "connected a b c replayed")

		p.Restart() // shorter than the one before
		r.awaitLog(t, "connected replayed")
		publish(p, "x")
		eventually(t, "x", func() bool { return r.heard("x") })

		p.Restart() // longer, with other bytes at the last sequence number
		publish(p, "k l m n")
		eventually(t, "n", func() bool { return r.heard("n") })
		if l := r.story(); l != "connected a b c down connected x down connected k l m n" {
			t.Errorf("heard %q", l)
		}
	})
}

// TestSubscriber_LostHistoryIsANewProcess: the ring has rolled past the last batch, so
// nothing proves that the process is the same, and what is gone shows.
func TestSubscriber_LostHistoryIsANewProcess(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{ReplayEndpoint: local, BufferSteps: 2})
	publish(p, "a")
	_, r, stop := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
	r.awaitLog(t, "connected a replayed")
	position := r.mu.last.Position()
	stop()
	publish(p, "b c d")
	_, r, _ = startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr(), Resume: &position})
	r.awaitLog(t, "connected c?2 d replayed")
}

func TestSubscriber_ResumesWhereItStopped(t *testing.T) {
	forms(t, func(t *testing.T, cfg PublisherConfig) {
		p, _ := startPublisher(t, cfg)
		publish(p, "a b")
		_, r, stop := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
		r.awaitLog(t, "connected a b replayed")
		position := r.mu.last.Position()
		stop()

		publish(p, "c")
		_, r, stop = startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr(), Resume: &position})
		r.awaitLog(t, "continues c replayed")
		stop()

		p.Restart()
		publish(p, "x y z")
		_, r, _ = startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr(), Resume: &position})
		r.awaitLog(t, "connected x y z replayed")
	})
}

// TestFC43_LostBatches: a hole that the replay has is filled before anyone sees it, one
// that it has not shows, and so does a start in the middle.
func TestFC43_LostBatches(t *testing.T) {
	forms(t, func(t *testing.T, cfg PublisherConfig) {
		p, _ := startPublisher(t, cfg)
		s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
		r.awaitLog(t, "connected replayed")
		subscribed(t, p, 1)
		publish(p, "0 1 2 3")
		p.Drop(3)
		publish(p, "4 5 6 7 8")
		eventually(t, "8", func() bool { return r.heard("8") })
		if l := r.story(); l != "connected 0 1 2 3 4 5 6 7 8" {
			t.Errorf("heard %q", l)
		}
		p.Skip(3)
		publish(p, "9 10 11 12 13")
		eventually(t, "13", func() bool { return r.heard("13") })
		if got := s.Stats(); got.Missed != 3 || !strings.Contains(r.log(), "12?3") {
			t.Errorf("%d missed, heard %q", got.Missed, r.log())
		}
	})
	t.Run("no replay", func(t *testing.T) {
		noGoroutineLeft(t)
		p, _ := startPublisher(t, PublisherConfig{})
		publish(p, "0 1 2 3 4 5 6")
		s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr()})
		subscribed(t, p, 1)
		publish(p, "7")
		p.Drop(2)
		publish(p, "8 9 10")
		r.awaitLog(t, "connected live 7?7 10?2")
		if got := s.Stats().Missed; got != 9 {
			t.Errorf("%d missed, want 9", got)
		}
	})
}

// TestSubscriber_FindsALostTail: no later batch shows that the last ones were lost.
func TestSubscriber_FindsALostTail(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{ReplayEndpoint: local})
	_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
	r.awaitLog(t, "connected replayed")
	p.Drop(2)
	publish(p, "a b")
	eventually(t, "b", func() bool { return r.heard("b") })
	if l := r.story(); l != "connected a b" {
		t.Errorf("heard %q", l)
	}
}

// TestSubscriber_ReplaySocketIsMissing: each way in which a replay socket may be absent
// is told within the timeout, and live batches flow.
func TestSubscriber_ReplaySocketIsMissing(t *testing.T) {
	noGoroutineLeft(t)
	f := func(name, replay, want string) {
		t.Run(name, func(t *testing.T) {
			p, _ := startPublisher(t, PublisherConfig{})
			_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: replay, ReplayTimeout: 50 * time.Millisecond})
			r.awaitLog(t, "connected failed")
			if err := r.mu.replays[0].Err; !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "replay_endpoint") {
				t.Errorf("error %q, want %q", err, want)
			}
			subscribed(t, p, 1)
			publish(p, "a b")
			r.awaitLog(t, "connected failed a b")
			cut(p)
			r.awaitLog(t, "connected failed")
		})
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	f("nobody listens", "tcp://"+closed.Addr().String(), "connection refused")

	other, _ := startPublisher(t, PublisherConfig{})
	f("a socket of another kind", other.Addr(), "not compatible")

	mute := fakePeer(t, zmq4.Router, func(w *wire) {
		for {
			if _, err := w.recv(); err != nil {
				return
			}
		}
	})
	f("no answer", mute, "no answer within 50ms")
}

// fakePeer serves each connection with f.
func fakePeer(t testing.TB, typ zmq4.SocketType, f func(*wire)) string {
	l, addr, err := listen(local)
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) error {
		accept(ctx, l, func(c net.Conn) {
			if w, err := openWire(ctx, c, typ, true, maxRequest); err == nil {
				f(w)
				w.close()
			}
		})
		return nil
	})
	return addr
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// TestSubscriber_ReplayThatLosesMessages: a ROUTER over its high-water mark drops the
// middle or the end of its answer, end marker included.
func TestSubscriber_ReplayThatLosesMessages(t *testing.T) {
	noGoroutineLeft(t)
	const total, mark = 25, 10
	requests := 0
	replay := fakePeer(t, zmq4.Router, func(w *wire) {
		frames, err := w.recv()
		if err != nil {
			return
		}
		requests++
		from := binary.BigEndian.Uint64(frames[1])
		sent := 0
		for seq := from; seq < total; seq++ {
			if sent++; sent > mark && seq%7 != 0 { // a little gets through beyond the mark
				continue
			}
			w.send(nil, seqFrame(seq), fmt.Append(nil, seq))
		}
		if sent <= mark || requests%2 == 0 {
			w.send(nil, seqFrame(endOfReplay), nil)
		}
		w.flush()
		w.recv() // until the client leaves
	})
	p, _ := startPublisher(t, PublisherConfig{})
	s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: replay, ReplayTimeout: 100 * time.Millisecond})
	eventually(t, "the end of the replay", func() bool { return strings.Contains(r.log(), "replayed") })
	var want []string
	for i := range total {
		want = append(want, fmt.Sprint(i))
	}
	r.awaitLog(t, "connected "+strings.Join(want, " ")+" replayed")
	if got := s.Stats(); got.Missed != 0 || got.Messages != total {
		t.Errorf("stats %+v", got)
	}
}

// TestSubscriber_SequenceStartsAgain: the publisher restarts behind a connection that
// stands, as behind a forwarder.
func TestSubscriber_SequenceStartsAgain(t *testing.T) {
	noGoroutineLeft(t)
	endpoint := fakePeer(t, zmq4.Pub, func(w *wire) {
		for _, seq := range []uint64{0, 1, 1, 2, 0, 1} {
			payload := fmt.Sprintf("s%d", seq)
			w.send(nil, seqFrame(seq), []byte(payload))
		}
		w.send([]byte("odd"))
		w.send(nil, []byte("short"), nil)
		w.flush()
		for {
			if _, err := w.recv(); err != nil {
				return
			}
		}
	})
	s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: endpoint})
	r.awaitLog(t, "connected live s0 s1")
	if l := r.log(); l != "connected live s0 s1 s2 down connected live s0 s1" {
		t.Errorf("heard %q", l)
	}
	eventually(t, "odd messages counted", func() bool { return s.Stats().Malformed == 2 })
	if got := s.Stats(); got.Duplicates != 1 {
		t.Errorf("stats %+v", got)
	}
}

func TestSubscriber_BindsForPublishersThatDial(t *testing.T) {
	noGoroutineLeft(t)
	s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: "tcp://*:0", Bind: true})
	if !strings.HasPrefix(s.Addr(), "tcp://127.0.0.1:") {
		t.Fatalf("bound to %s", s.Addr())
	}
	for i := range 3 {
		p, stop := startPublisher(t, PublisherConfig{Endpoint: s.Addr(), Connect: true})
		subscribed(t, p, 1)
		publish(p, fmt.Sprintf("a%d b%d", i, i))
		r.awaitLog(t, fmt.Sprintf("connected live a%d b%d", i, i))
		stop()
	}
}

func TestTransport_UnixSockets(t *testing.T) {
	noGoroutineLeft(t)
	dir := t.TempDir()
	cfg := PublisherConfig{Endpoint: "ipc://" + filepath.Join(dir, "pub"), ReplayEndpoint: "ipc://" + filepath.Join(dir, "replay")}
	// A file without a process behind it is what a crash leaves.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "pub"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()

	p, _ := startPublisher(t, cfg)
	publish(p, "a")
	_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
	r.awaitLog(t, "connected a replayed")
	if _, err := NewPublisher(cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second publisher on one socket: %v", err)
	}
}

func TestSubscriber_TopicsAreFilteredByThePublisher(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{Topic: "kv@a"})
	_, other, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Topic: "kv@b"})
	_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Topic: "kv@"})
	subscribed(t, p, 2)
	publish(p, "x")
	r.awaitLog(t, "connected live x")
	if other.heard("x") {
		t.Error("a subscriber of another topic hears it")
	}
}

func TestPublisher_Delays(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{})
	_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr()})
	subscribed(t, p, 1)
	start := time.Now()
	p.Delay(40 * time.Millisecond)
	publish(p, "a")
	p.Delay(0)
	publish(p, "b")
	r.awaitLog(t, "connected live a b")
	if d := time.Since(start); d < 40*time.Millisecond {
		t.Errorf("came after %s", d)
	}
}

func TestConfig_ErrorsNameTheEndpoint(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for _, ep := range []string{"", "localhost:5557", "tcp://", "tcp://host", "ipc://", "inproc://x"} {
		_, err := NewSubscriber(SubscriberConfig{Endpoint: ep})
		f(err, fmt.Sprintf("%q: want tcp://host:port", ep))
		_, err = NewPublisher(PublisherConfig{Endpoint: ep, Connect: true})
		f(err, fmt.Sprintf("%q: want tcp://host:port", ep))
	}
	_, err := NewSubscriber(SubscriberConfig{Endpoint: local, Replay: "x"})
	f(err, "replay: ")
	p, _ := startPublisher(t, PublisherConfig{})
	_, err = NewPublisher(PublisherConfig{Endpoint: local, ReplayEndpoint: p.Addr()})
	f(err, "replay: listen on "+p.Addr())
	_, err = NewSubscriber(SubscriberConfig{Endpoint: p.Addr(), Bind: true})
	f(err, "listen on "+p.Addr())
}

// BenchmarkTransport measures batches of 1 KiB from Publish to the handler over TCP.
func BenchmarkTransport(b *testing.B) {
	p, _ := startPublisher(b, PublisherConfig{Queue: 1 << 20})
	s, _, _ := startSubscriber(b, SubscriberConfig{Endpoint: p.Addr()})
	subscribed(b, p, 1)
	payload := make([]byte, 1<<10)
	b.ReportAllocs()
	start := time.Now()
	for b.Loop() {
		p.Publish(payload)
	}
	n := p.Publish(payload) + 1
	eventually(b, "all", func() bool { return s.Stats().Messages+p.Stats().Dropped == n })
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), "msg/s")
}
