package events

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

func TestRelay_ConfigErrorsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := openBus(t, BusConfig{})
	f := func(change func(*RelayConfig), want string) {
		t.Helper()
		cfg := RelayConfig{Worker: "w1", Events: "tcp://127.0.0.1:5557", Conn: b.Local()}
		change(&cfg)
		if _, err := NewRelay(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	f(func(c *RelayConfig) { c.Worker = "" }, "worker id")
	f(func(c *RelayConfig) { c.Events = "" }, "events endpoint")
	f(func(c *RelayConfig) { c.Events, c.Ranks = "ipc:///tmp/x", 2 }, "several ranks")
	f(func(c *RelayConfig) { c.Events, c.Ranks = "tcp://h:65535", 2 }, "no port")
	f(func(c *RelayConfig) { c.Ranks = -1 }, "ranks")
	f(func(c *RelayConfig) { c.RelayID = strings.Repeat("x", 300) }, "relay id")
	f(func(c *RelayConfig) { c.Prefix = "a b" }, "prefix")
	f(func(c *RelayConfig) { c.StateDir = "/dev/null/x" }, "state_dir")
}

func TestRelay_LateAttachIsPartialUntilAClear(t *testing.T) {
	t.Parallel()
	e := newEngine(t, kvwire.PublisherConfig{})
	warm := tokens(0, 6)
	e.store(warm) // nobody listens
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	eventually(t, 5*time.Second, "partial, and why", func() bool {
		s := r.status(w1)
		return s.State == FeedPartial && strings.Contains(s.Reason, "no KV event yet") && strings.Contains(s.Reason, "--kv-events-config")
	})
	e.subscribed()
	// A new conversation, and the next turn of the old one, whose blocks are unknown.
	e.store(tokens(100, 3))
	e.store(append(tokens(0, 6), tokens(50, 2)...))
	fresh := chain(base, tokens(100, 3))
	r.converges(5*time.Second, w1, FeedPartial, truthOf(fresh))
	eventually(t, 5*time.Second, "the flag that mends it", func() bool {
		s := r.status(w1).Reason
		return strings.Contains(s, `attached after`) && strings.Contains(s, "replay_endpoint") && strings.Contains(s, "state_dir")
	})
	e.clear()
	e.store(tokens(200, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
}

func TestRelay_LateAttachWithReplayIsComplete(t *testing.T) {
	t.Parallel()
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	e.store(tokens(0, 6))
	e.store(tokens(100, 3))
	e.evict(tokens(0, 6), 2)
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
}

func TestRelay_ShortReplayBufferIsPartial(t *testing.T) {
	t.Parallel()
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed, BufferSteps: 2})
	for i := range 5 {
		e.store(tokens(10*i, 3))
	}
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	r.converges(5*time.Second, w1, FeedPartial, truthOf(chain(base, tokens(30, 3)), chain(base, tokens(40, 3))))
	eventually(t, 5*time.Second, "the flag that mends it", func() bool { return strings.Contains(r.status(w1).Reason, "buffer_steps") })
}

func TestRelay_StateDir(t *testing.T) {
	t.Parallel()
	for _, replay := range []string{"", replayed} {
		t.Run("replay="+replay, func(t *testing.T) {
			e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replay})
			dir := t.TempDir()
			r := newRig(t, rigConfig{})
			withState := func(c *RelayConfig) { c.StateDir = dir }
			_, stop := r.relay(e, r.bus.Local(), withState)
			e.subscribed()
			e.store(tokens(0, 5))
			lora := e.event(tokens(300, 2), 0, 2)
			e.publish(lora)
			r.converges(5*time.Second, w1, FeedComplete, e.truth)
			stop()

			if replay != "" { // what happens while the relay is away is replayed
				e.store(append(tokens(0, 5), tokens(20, 2)...))
				e.evict(tokens(300, 2), 1)
				_, stop = r.relay(e, r.bus.Local(), withState)
			} else { // the next live event proves that nothing happened
				_, stop = r.relay(e, r.bus.Local(), withState)
				eventually(t, 5*time.Second, "waits for proof", func() bool { return strings.Contains(r.status(w1).Reason, "state_dir waits") })
				if len(r.held(w1)) != 0 {
					t.Fatal("credit before the proof")
				}
				e.subscribed()
				e.store(append(tokens(0, 5), tokens(20, 2)...))
			}
			r.converges(5*time.Second, w1, FeedComplete, e.truth)
			stop()

			// Another process of the engine: the file is void.
			e.restart()
			e.store(tokens(60, 3))
			_, stop = r.relay(e, r.bus.Local(), withState)
			if replay == "" {
				eventually(t, 5*time.Second, "waits for proof", func() bool { return strings.Contains(r.status(w1).Reason, "state_dir waits") })
				e.subscribed()
				e.store(tokens(80, 3)) // seq 1 after a file of seq 2: it counts anew
				r.converges(5*time.Second, w1, FeedPartial, truthOf(chain(base, tokens(80, 3))))
			} else {
				r.converges(5*time.Second, w1, FeedComplete, e.truth)
			}
			stop()
		})
	}
}

func TestRelay_StateDirAfterMissedEvents(t *testing.T) {
	t.Parallel()
	e := newEngine(t, kvwire.PublisherConfig{})
	dir := t.TempDir()
	r := newRig(t, rigConfig{})
	withState := func(c *RelayConfig) { c.StateDir = dir }
	_, stop := r.relay(e, r.bus.Local(), withState)
	e.subscribed()
	e.store(tokens(0, 5))
	e.store(tokens(300, 2))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	stop()
	e.evict(tokens(300, 2), 2) // missed
	_, stop = r.relay(e, r.bus.Local(), withState)
	eventually(t, 5*time.Second, "waits for proof", func() bool { return strings.Contains(r.status(w1).Reason, "state_dir waits") })
	e.subscribed()
	// A child of a remembered block proves its prefix; the rest earns no credit.
	e.store(append(tokens(0, 5), tokens(20, 2)...))
	r.converges(5*time.Second, w1, FeedPartial, truthOf(chain(base, append(tokens(0, 5), tokens(20, 2)...))))
	stop()

	// A damaged file is no state.
	file := filepath.Join(dir, "w1.0.state")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	_, stop = r.relay(e, r.bus.Local(), func(c *RelayConfig) {
		withState(c)
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	eventually(t, 5*time.Second, "reported", func() bool { return strings.Contains(log.String(), "state is not restored") })
	stop()
}

func TestRelay_RestartsOfTheEngine(t *testing.T) {
	t.Parallel()
	for _, replay := range []string{"", replayed} {
		t.Run("replay="+replay, func(t *testing.T) {
			e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replay})
			r := newRig(t, rigConfig{})
			r.relay(e, r.bus.Local(), nil)
			e.subscribed()
			for i := range 5 {
				e.store(tokens(10*i, 5))
				r.converges(5*time.Second, w1, FeedComplete, e.truth)
				connected := r.counter("relay_incarnations_total")
				e.restart()
				eventually(t, 5*time.Second, "seen", func() bool { return r.counter("relay_incarnations_total") > connected && len(r.held(w1)) == 0 })
				e.subscribed()
			}
			e.store(tokens(500, 5))
			r.converges(5*time.Second, w1, FeedComplete, e.truth)
			if r.counter("incarnations_total", "worker", "w1") < 5 {
				t.Fatalf("incarnations %v", r.counter("incarnations_total"))
			}
		})
	}
}

func TestRelay_SaysThatEventsAreOff(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := newRig(t, rigConfig{})
	relay, _ := startRelay(t, nil, r.bus.Local(), func(c *RelayConfig) {
		c.Events = "tcp://127.0.0.1:1"
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	relay.SetInfo(WorkerInfo{Engine: "sglang", BlockSize: 64})
	eventually(t, 5*time.Second, "reason in the status", func() bool {
		s := r.status(w1)
		return s.State == FeedPartial && strings.Contains(s.Reason, "KV events off?") && strings.Contains(s.Reason, "--page-size")
	})
	eventually(t, 5*time.Second, "and in the log", func() bool {
		return strings.Contains(log.String(), "KV events off?") && strings.Contains(log.String(), "--kv-events-config")
	})
}

func TestRelay_SaysThatTheSocketIsGone(t *testing.T) {
	t.Parallel()
	var log logBuffer
	e := newEngine(t, kvwire.PublisherConfig{})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	e.subscribed()
	e.store(tokens(0, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.exit()
	const gone = "the engine's event socket is gone, reconnecting"
	eventually(t, 5*time.Second, "reason in the status", func() bool { return strings.Contains(r.status(w1).Reason, gone) })
	eventually(t, 5*time.Second, "and in the log", func() bool { return strings.Contains(log.String(), gone) })
	if reason := r.status(w1).Reason; strings.Contains(reason, "KV events off?") || strings.Contains(log.String(), "KV events off?") {
		t.Errorf("a flag mends nothing here: %s\n%s", reason, log.String())
	}
}

// TestRelay_KeepsSayingThatTheReplaySocketIsDead: while it is asked nobody is told to turn
// KV events on, and once events came it still is what the next gap will need.
func TestRelay_KeepsSayingThatTheReplaySocketIsDead(t *testing.T) {
	t.Parallel()
	e := newEngine(t, kvwire.PublisherConfig{})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Replay = "tcp://127.0.0.1:1" })
	e.subscribed()
	asked := false
	eventually(t, 10*time.Second, "the replay socket is given up", func() bool {
		reason := r.status(w1).Reason
		if strings.Contains(reason, "events are off") || strings.Contains(reason, "events off") {
			t.Fatalf("blames the events: %s", reason)
		}
		asked = asked || strings.Contains(reason, "the replay socket is being asked")
		return strings.Contains(reason, "no KV event yet; the replay socket does not answer")
	})
	if !asked {
		t.Error("the wait for the replay socket was not shown")
	}
	e.store(tokens(0, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.store(tokens(3, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	if reason := r.status(w1).Reason; !strings.Contains(reason, "the replay socket does not answer") || !strings.Contains(reason, "replay_endpoint") {
		t.Errorf("the dead replay socket is forgotten: %q", reason)
	}
}

func TestRelay_BindsForEnginesThatDial(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	relay, _ := startRelay(t, nil, r.bus.Local(), func(c *RelayConfig) { c.Events, c.Bind = "tcp://127.0.0.1:0", true })
	e := newEngine(t, kvwire.PublisherConfig{Endpoint: relay.Addr(0), Connect: true})
	e.subscribed()
	e.store(tokens(0, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
}

func TestRelay_AnnouncesWhatItKnows(t *testing.T) {
	t.Parallel()
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	b := openBus(t, BusConfig{})
	got := make(chan Announcement, 100)
	subj, err := newSubjects("", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Local().Subscribe(subj.workers(), announcements(got))
	if err != nil {
		t.Fatal(err)
	}
	relay, stop := startRelay(t, e, b.Local(), nil)
	info := WorkerInfo{Models: []ModelInfo{{ID: "m"}}, Engine: "vllm", CapacityTokens: 1000, MaxNumSeqs: 8, BlockSize: bs}
	relay.SetInfo(info)
	e.store(tokens(0, 3))
	await(t, got, func(a Announcement) bool {
		return a.V == 1 && a.Worker == "w1" && a.URL == "http://w1:8000" && a.Relay == "r1" && a.Info.Engine == "vllm" &&
			a.Info.CapacityTokens == 1000 && len(a.Ranks) == 1 && a.Ranks[0].Coverage == CoverageComplete && a.Ranks[0].BlockSize == bs && a.Ranks[0].Blocks == 3
	})
	relay.SetInfo(info) // nothing new
	e.restart()
	await(t, got, func(a Announcement) bool { return a.Ranks[0].LastSeq == 0 && a.Ranks[0].Blocks == 0 })
	stop()
	await(t, got, func(a Announcement) bool { return a.Farewell })
}

func TestRelay_FitsTheServersMessages(t *testing.T) {
	t.Parallel()
	small := natsServer(t, "127.0.0.1:0", func(o *server.Options) { o.MaxPayload = 8192 })
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	e.store(tokens(0, 4000))
	b := openBus(t, BusConfig{URL: "nats://" + small.Addr().String()})
	startRelay(t, e, b.External(), nil)
	r := newRig(t, rigConfig{bus: BusConfig{URL: "nats://" + small.Addr().String()}})
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.store(tokens(5000, 4000))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
}

func TestRelay_InProcessAndExternalFeedsSideBySide(t *testing.T) {
	t.Parallel()
	s := natsServer(t, "127.0.0.1:0", nil)
	url := "nats://" + s.Addr().String()
	r := newRig(t, rigConfig{bus: BusConfig{URL: url}})
	own, far := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed}), newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r.relay(own, r.bus.Local(), nil)
	other := openBus(t, BusConfig{URL: url})
	startRelay(t, far, other.External(), func(c *RelayConfig) { c.Worker, c.RelayID = "w2", "r2" })
	own.store(tokens(0, 3))
	far.store(tokens(40, 4))
	r.converges(5*time.Second, w1, FeedComplete, own.truth)
	r.converges(5*time.Second, kv.WorkerRank{ID: "w2"}, FeedComplete, far.truth)
}
