package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// feed follows one rank's events as a relay does: engine hashes are counted and
// translated to sequence hashes through their parents.
type feed struct {
	mu struct {
		sync.Mutex
		held                               map[kvwire.EngineHash]*feedBlock
		connected, resets, missed, orphans int
		unknown, batches, replayed, signed int
		ranks                              map[int]bool
	}
	decoder kvwire.Decoder
	batch   kvwire.Batch
	t       *testing.T
}

type feedBlock struct {
	seq    kv.SequenceHash
	copies int
	ns     kv.Namespace
}

// follow connects a feed to a rank until the test ends.
func follow(t *testing.T, cfg kvwire.SubscriberConfig) *feed {
	t.Helper()
	f := &feed{t: t}
	f.mu.held, f.mu.ranks = map[kvwire.EngineHash]*feedBlock{}, map[int]bool{}
	cfg.BackoffMin = 5 * time.Millisecond
	sub, err := kvwire.NewSubscriber(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = sub.Run(ctx, f) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return f
}

func (f *feed) Connected(continues bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.connected++
	if !continues {
		clear(f.mu.held)
		f.mu.resets++
	}
}

func (f *feed) Replayed(r kvwire.Replay) {
	if r.Err != nil {
		f.t.Errorf("replay: %v", r.Err)
	}
}

func (f *feed) Disconnected(error) {}

func (f *feed) Message(m kvwire.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.decoder.Decode(m.Payload, &f.batch); err != nil {
		f.t.Errorf("batch %d: %v", m.Seq, err)
		return
	}
	f.mu.missed += int(m.Missed)
	f.mu.unknown += f.batch.Unknown + f.batch.Malformed
	f.mu.batches++
	f.mu.ranks[f.batch.Rank] = true
	if m.Replayed {
		f.mu.replayed++
	}
	for i := range f.batch.Events {
		f.applyLocked(&f.batch.Events[i])
	}
}

func (f *feed) applyLocked(e *kvwire.Event) {
	switch e.Kind {
	case kv.EventCleared:
		clear(f.mu.held)
	case kv.EventRemoved:
		for _, h := range e.Hashes {
			if b := f.mu.held[h]; b == nil {
				f.mu.orphans++
			} else if b.copies--; b.copies == 0 {
				delete(f.mu.held, h)
			}
		}
	case kv.EventStored:
		ns := kv.Namespace{LoRA: e.LoRAName, Salt: e.Salt}
		parent := f.mu.held[e.Parent]
		if e.HasParent && parent == nil {
			f.mu.orphans++
			return
		}
		if e.HasParent {
			ns = parent.ns
		}
		for i, h := range e.Hashes {
			var mm []uint64
			if i < len(e.MM) {
				mm = e.MM[i]
			}
			b := kv.HashBlock(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], mm, ns.Seed())
			seq := kv.First(b)
			if parent != nil {
				seq = parent.seq.Next(b)
			}
			if f.mu.held[h] == nil {
				f.mu.held[h] = &feedBlock{seq: seq, ns: ns}
			}
			parent = f.mu.held[h]
			parent.copies++
		}
	}
}

// differs says how the feed's view differs from what the rank holds; "" when equal.
func (f *feed) differs(truth Truth) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.mu.held) != len(truth) {
		return fmt.Sprintf("%d prefixes by events, %d in truth", len(f.mu.held), len(truth))
	}
	for _, h := range truth {
		b := f.mu.held[h.Engine]
		if b == nil || b.seq != h.Sequence || b.copies != h.Copies {
			return fmt.Sprintf("prefix %x: events say %+v, truth %+v", h.Sequence, b, h)
		}
	}
	return ""
}

// agree waits until the feed equals the rank's truth.
func agree(t *testing.T, f *feed, s *Server, rank int) {
	t.Helper()
	why := ""
	if !eventually(5*time.Second, func() bool {
		why = f.differs(s.Truth(rank))
		return why == ""
	}) {
		t.Errorf("rank %d: %s", rank, why)
	}
}

func (f *feed) count(p *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *p
}

// converse has conversations at once, so that the small cache of these tests evicts.
func converse(t *testing.T, s *Server, talks, turns int, headers ...string) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range talks {
		wg.Go(func() {
			history := fmt.Sprintf("conversation %d on %v. ", i, headers)
			for range turns {
				body, _ := json.Marshal(map[string]any{"prompt": history, "max_tokens": 40, "ignore_eos": true})
				r := post(t, s, "/v1/completions", string(body), headers...)
				if r.status != 200 {
					t.Errorf("%d %s", r.status, r.raw)
					return
				}
				history += dig(r.json, "choices.0.text").(string) + strings.Repeat(" and then?", 8)
			}
		})
	}
	wg.Wait()
}

// TestEvents_EveryLayoutTellsTheTruth: a consumer that comes late replays what it
// missed, follows the rest live, and ends with what the engine holds.
func TestEvents_EveryLayoutTellsTheTruth(t *testing.T) {
	for _, layout := range kvwire.Layouts() {
		t.Run(layout.String(), func(t *testing.T) {
			cfg := Config{
				Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Layout: layout.String(), Topic: "kv",
				Engine: EngineConfig{CapacityTokens: 16 * 40},
			}
			if strings.HasPrefix(layout.String(), "sglang") {
				cfg.Like = SGLang
			}
			s := start(t, cfg)
			converse(t, s, 3, 2)
			f := follow(t, kvwire.SubscriberConfig{Endpoint: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0), Topic: "kv"})
			agree(t, f, s, 0)
			converse(t, s, 3, 3)
			agree(t, f, s, 0)
			if s.Stats(0).Evicted == 0 {
				t.Error("nothing was evicted")
			}
			if n := f.count(&f.mu.replayed); n == 0 || n == f.count(&f.mu.batches) {
				t.Errorf("%d of %d batches are replayed", n, f.count(&f.mu.batches))
			}
			for name, p := range map[string]*int{"missed batches": &f.mu.missed, "orphans": &f.mu.orphans, "unknown": &f.mu.unknown} {
				if n := f.count(p); n != 0 {
					t.Errorf("%s: %d", name, n)
				}
			}
			path := "/reset_prefix_cache"
			if cfg.Like == SGLang {
				path = "/flush_cache"
			}
			post(t, s, path, "")
			if cfg.Like != SGLang {
				converse(t, s, 1, 1) // vLLM says so in its next step
			}
			agree(t, f, s, 0)
		})
	}
}

func TestEvents_BytesAndSignedHashes(t *testing.T) {
	for _, opts := range []kvwire.EncodeOptions{{HashBytes: 32}, {HashBytes: 16}, {Signed: true}, {MapEnvelope: true}} {
		s := start(t, Config{Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Encode: opts})
		converse(t, s, 2, 2)
		agree(t, follow(t, kvwire.SubscriberConfig{Endpoint: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)}), s, 0)
	}
}

// TestEvents_NamespacesAndMedia: adapters, salts and images reach the consumer.
func TestEvents_NamespacesAndMedia(t *testing.T) {
	s := start(t, Config{Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Adapters: []string{"ad"}})
	long := strings.Repeat("tell me more of it. ", 20)
	for _, extra := range []string{`"model":"sim"`, `"model":"ad"`, `"cache_salt":"t1"`, `"model":"ad","cache_salt":"t1"`} {
		if r := post(t, s, "/v1/completions", `{"prompt":"`+long+`",`+extra+`}`); r.status != 200 {
			t.Fatal(r.raw)
		}
	}
	post(t, s, "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}},{"type":"image_url","image_url":{"url":"data:y"}},{"type":"text","text":"`+long+`"}]}],"max_tokens":30}`)
	agree(t, follow(t, kvwire.SubscriberConfig{Endpoint: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)}), s, 0)
}

func TestEvents_RanksPublishOnConsecutivePorts(t *testing.T) {
	both(t, Config{DPRanks: 3, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"}, func(t *testing.T, s *Server) {
		for rank := range 3 {
			want, err := rankEndpoint(s.EventsEndpoint(0), rank)
			if err != nil || s.EventsEndpoint(rank) != want {
				t.Errorf("rank %d publishes on %s, want %s", rank, s.EventsEndpoint(rank), want)
			}
			f := follow(t, kvwire.SubscriberConfig{Endpoint: s.EventsEndpoint(rank), Replay: s.ReplayEndpoint(rank)})
			converse(t, s, 1, 2, "X-Data-Parallel-Rank", itoa(rank))
			agree(t, f, s, rank)
			if f.mu.Lock(); len(f.mu.held) == 0 || len(f.mu.ranks) != 1 || !f.mu.ranks[rank] {
				t.Errorf("rank %d: %d prefixes, batches of ranks %v", rank, len(f.mu.held), f.mu.ranks)
			}
			f.mu.Unlock()
		}
		if s.cfg.Like == SGLang {
			advert := dig(get(t, s, "/server_info").json, "kv_events")
			if "tcp://"+dig(advert, "endpoint_host").(string)+":"+itoa(num(dig(advert, "endpoint_port_base"))) != s.EventsEndpoint(0) ||
				num(dig(advert, "block_size")) != 16 || num(dig(advert, "dp_size")) != 3 {
				t.Errorf("advert %v", advert)
			}
		}
	})
}

// TestEvents_RestartStartsAgain: a new incarnation is seen as one, and its few blocks
// are all that is left.
func TestEvents_RestartStartsAgain(t *testing.T) {
	s := start(t, Config{Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"})
	f := follow(t, kvwire.SubscriberConfig{Endpoint: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)})
	converse(t, s, 2, 2)
	agree(t, f, s, 0)
	before := s.Truth(0)
	if err := s.SetFaults(Faults{Restart: true}); err != nil {
		t.Fatal(err)
	}
	converse(t, s, 1, 1)
	agree(t, f, s, 0)
	if n := f.count(&f.mu.resets); n < 2 {
		t.Errorf("%d resets", n)
	}
	for seq, h := range s.Truth(0) {
		if old, ok := before[seq]; ok && old.Engine == h.Engine {
			t.Fatal("a new vLLM process uses the hashes of the last one")
		}
	}
}

func TestEvents_LossesAreGaps(t *testing.T) {
	s := start(t, Config{Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"})
	f := follow(t, kvwire.SubscriberConfig{Endpoint: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)})
	converse(t, s, 1, 1)
	agree(t, f, s, 0)
	// What only the live socket loses, the replay socket still has.
	setFaults(t, s, `{"drop_events":2}`)
	converse(t, s, 1, 3)
	agree(t, f, s, 0)
	if n := f.count(&f.mu.missed); n != 0 {
		t.Errorf("%d batches missed", n)
	}
	setFaults(t, s, `{"skip_events":2}`)
	converse(t, s, 2, 3)
	if !eventually(5*time.Second, func() bool { return f.count(&f.mu.missed) == 2 }) {
		t.Errorf("%d batches missed, want 2", f.count(&f.mu.missed))
	}
}

// TestEvents_ReorderPutsChildrenFirst: the same blocks, but each before its parent.
func TestEvents_ReorderPutsChildrenFirst(t *testing.T) {
	e := NewEngine(EngineConfig{BlockSize: 16})
	c := newClock(e)
	submit(t, e, &Seq{Tokens: someTokens(100, 1), OutputTokens: 1})
	c.step()
	got := reorder(c.events)
	if len(c.events) != 1 || len(got) != 6 {
		t.Fatalf("%d events become %d", len(c.events), len(got))
	}
	all := c.events[0]
	for i, ev := range got {
		k := 5 - i
		if ev.Hashes[0] != all.Hashes[k] || len(ev.Tokens) != 16 || ev.Tokens[0] != all.Tokens[16*k] || ev.HasParent != (k > 0) {
			t.Errorf("event %d: %+v", i, ev)
		}
		if k > 0 && ev.Parent != all.Hashes[k-1] {
			t.Errorf("event %d has another parent", i)
		}
	}
}

func TestEvents_EngineThatDials(t *testing.T) {
	f := &feed{t: t}
	f.mu.held, f.mu.ranks = map[kvwire.EngineHash]*feedBlock{}, map[int]bool{}
	sub, err := kvwire.NewSubscriber(kvwire.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = sub.Run(ctx, f) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	s := start(t, Config{Events: sub.Addr(), EventsConnect: true})
	if !eventually(5*time.Second, func() bool { return s.ranks[0].publisher.Stats().Subscribers == 1 }) {
		t.Fatal("the engine does not dial")
	}
	converse(t, s, 2, 2)
	agree(t, f, s, 0)
}
