package testcluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// Config says what the cluster is and how it is driven.
type Config struct {
	Workers    int              // engines; default 8
	Routers    int              // proxies, each with its own index and bookings; requests alternate between them; default 1
	Mode       router.Mode      // default kv
	Engine     sim.EngineConfig // default: the simulator's (linear, 400,000 tokens, 128 sequences)
	EventDelay time.Duration    // from the end of a step to the index; default 2 ms
	// BookingDelay is how long the proxies' bookings travel from one to another, beside
	// their batching; 0 = no proxy sees another's bookings.
	BookingDelay time.Duration
	LoseBookings int           // every so many messages of bookings one is lost; 0 = none
	ClientDelay  time.Duration // from the end of a turn to the send of the next, before think time; default 1 ms
	Concurrency  int           // closed-loop clients; 0 = open loop, each conversation at its Arrival
	Stagger      time.Duration // client i first sends at a random time in [0, Stagger); 0 = all at once
	Seed         uint64        // of starts and of the router's random choices
	// Admission makes requests wait in the router's queue for a slot and first turns for
	// KV room. A conversation that is refused ends. Without it whoever comes is sent.
	Admission bool
	Until     time.Duration // the run ends here, whatever is open; 0 = when nothing is
}

func (c Config) withDefaults() Config {
	if c.Workers == 0 {
		c.Workers = 8
	}
	if c.Routers == 0 {
		c.Routers = 1
	}
	if c.Mode == "" {
		c.Mode = router.ModeKV
	}
	if c.EventDelay == 0 {
		c.EventDelay = 2 * time.Millisecond
	}
	if c.ClientDelay == 0 {
		c.ClientDelay = time.Millisecond
	}
	if c.Engine.BlockSize == 0 {
		c.Engine.BlockSize = kv.DefaultBlockSize
	}
	if c.Engine.CapacityTokens == 0 {
		c.Engine.CapacityTokens = 400_000
	}
	if c.Engine.MaxNumSeqs == 0 {
		c.Engine.MaxNumSeqs = 128
	}
	return c
}

// model is the name every worker serves.
const model = "sim"

// epoch is virtual time zero.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// cluster is one run in progress.
type cluster struct {
	cfg     Config
	now     time.Duration // virtual time since epoch
	timers  timers
	proxies []*proxy
	workers []*worker
	byID    map[string]*worker
	load    *loader
	letters []letter // bookings between proxies on their way, oldest first
	posted  int      // letters, with the lost ones
	measure recorder
	waiting []*request // in the queues of the routers, oldest first
	err     error
}

// proxy is one router with its own view of the fleet.
type proxy struct {
	router  *router.Router
	index   *index.Set
	numbers *kv.Workers
}

// worker is one engine, and what its relay has to remember.
type worker struct {
	rank       kv.WorkerRank
	number     int
	engine     *sim.Engine
	translator *events.Translator
	stepping   bool
	feed       [][]kv.Event // batches on their way to the proxies, oldest first
}

// Run plays w through the cluster that cfg describes until every conversation has
// ended, and returns what was measured.
func Run(cfg Config, w Workload) (*Result, error) {
	wall := time.Now()
	c, err := play(cfg.withDefaults(), w)
	if err != nil {
		return nil, err
	}
	r := c.measure.result(c, w)
	r.Wall = time.Since(wall)
	return r, nil
}

// play is Run up to the last event.
func play(cfg Config, w Workload) (*cluster, error) {
	c := &cluster{cfg: cfg, byID: map[string]*worker{}, measure: newRecorder(cfg)}
	c.build()
	c.load = newLoader(c, w)
	c.load.start()
	for c.err == nil {
		t, ok := c.timers.pop()
		if !ok || c.cfg.Until > 0 && t.at > c.cfg.Until {
			break
		}
		c.now = t.at
		switch t.kind {
		case timerSend:
			c.send(t.session)
		case timerGiveUp:
			c.giveUp(t.request)
		case timerStep:
			c.endStep(c.workers[t.worker])
		case timerFeed:
			c.deliver(c.workers[t.worker])
		case timerBookings, timerState:
			c.tell(t.worker, t.kind == timerState)
		case timerLetter:
			c.hear()
		}
	}
	if c.err == nil && c.load.open > 0 && c.cfg.Until == 0 {
		c.err = fmt.Errorf("%d conversations never ended: an engine stopped stepping with requests in it", c.load.open)
	}
	if c.err != nil {
		return nil, fmt.Errorf("%s/%s at %v: %w", w.Name, cfg.Mode, c.now, c.err)
	}
	return c, nil
}

func (c *cluster) clock() time.Time { return epoch.Add(c.now) }

func (c *cluster) build() {
	specs := make([]router.WorkerSpec, c.cfg.Workers)
	for i := range c.cfg.Workers {
		ec := c.cfg.Engine
		ec.Seed = c.cfg.Seed<<8 | uint64(i)
		w := &worker{
			rank: kv.WorkerRank{ID: "w" + strconv.Itoa(i)}, number: i,
			engine: sim.NewEngine(ec), translator: events.NewTranslator(events.TranslatorConfig{}),
		}
		c.workers = append(c.workers, w)
		c.byID[w.rank.ID] = w
		specs[i] = router.WorkerSpec{
			ID: w.rank.ID, Models: []router.ModelSpec{{Name: model}}, Ranks: 1, Engine: "vllm",
			BlockSize: ec.BlockSize, CapacityTokens: ec.CapacityTokens, MaxNumSeqs: ec.MaxNumSeqs,
		}
	}
	for i := range c.cfg.Routers {
		p := &proxy{index: index.NewSet(index.Config{Now: c.clock}), numbers: &kv.Workers{}}
		queue := -1
		if c.cfg.Admission {
			queue = 0 // the default
		}
		rc := router.Config{
			Mode: c.cfg.Mode, Index: p.index, Workers: p.numbers, Now: c.clock,
			Seed: c.cfg.Seed<<8 + uint64(i) + 1, MaxQueue: queue, MaxQueueDelay: queueDelay,
		}
		if c.cfg.BookingDelay > 0 {
			rc.OnBooking = func() { c.changed(i) }
			c.timers.push(timer{kind: timerState, worker: i})
		}
		p.router = router.New(rc)
		p.router.SetWorkers(specs)
		for _, w := range c.workers {
			p.numbers.Hold(w.rank)
			p.router.SetHealth(w.rank.ID, true, "")
			p.router.SetFeed(w.rank, router.Feed{State: "complete", BlockSize: c.cfg.Engine.BlockSize})
		}
		c.proxies = append(c.proxies, p)
	}
}

// queueDelay is how long a request waits in a router's queue before it is refused.
const queueDelay = 10 * time.Second

// send routes the session's next turn and hands it to the chosen engine.
func (c *cluster) send(s *session) {
	req := s.next(c.now)
	p := c.proxies[c.load.sent%len(c.proxies)]
	c.load.sent++
	turn := s.conv.Turns[s.turn]
	lease, waiter, err := p.router.Enter(context.Background(), &router.Request{
		Model: model, Stream: true, FirstTurn: s.turn == 0, PinRank: -1, MaxTokens: turn.OutputTokens,
		Prompt: &kv.Prompt{Source: kv.SourceLocal, Tokens: req.seq.Tokens, TokenCount: len(req.seq.Tokens)},
	})
	if err != nil {
		c.err = fmt.Errorf("route turn %d of conversation %d: %w", s.turn, s.conv.ID, err)
		return
	}
	if waiter != nil {
		req.waiter = waiter
		c.waiting = append(c.waiting, req)
		c.timers.push(timer{at: c.now + queueDelay, kind: timerGiveUp, request: req})
		return
	}
	c.submit(req, lease)
}

// submit hands a request to the engine of its lease.
func (c *cluster) submit(req *request, lease *router.Lease) {
	s := req.session
	req.lease, req.waiter = lease, nil
	req.worker = c.byID[lease.Worker().ID]
	c.measure.sent(c.now, req)
	if err := req.worker.engine.Submit(req.seq); err != nil {
		c.err = fmt.Errorf("submit turn %d of conversation %d to %s: %w", s.turn, s.conv.ID, req.worker.rank, err)
		return
	}
	c.beginStep(req.worker)
}

// claim submits the requests that the routers have called.
func (c *cluster) claim() {
	still := c.waiting[:0]
	for _, req := range c.waiting {
		select {
		case <-req.waiter.Called():
			lease, err := req.waiter.Claim(context.Background())
			switch {
			case err != nil:
				c.refuse(req)
			case lease != nil:
				c.submit(req, lease)
			default:
				still = append(still, req)
			}
		default:
			still = append(still, req)
		}
	}
	clear(c.waiting[len(still):])
	c.waiting = still
}

// giveUp ends the wait of a request whose time is over.
func (c *cluster) giveUp(req *request) {
	if req.waiter == nil || req.waiter.Expire() == nil {
		return
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(r *request) bool { return r == req })
	c.refuse(req)
}

// refuse ends the conversation of a request that was refused.
func (c *cluster) refuse(req *request) {
	req.waiter = nil
	c.measure.refused(c.now, req)
	c.load.end(req.session)
}

// beginStep starts the worker's next step unless one is running or there is nothing
// to do.
func (c *cluster) beginStep(w *worker) {
	if w.stepping {
		return
	}
	d, ok := w.engine.Begin(c.clock())
	if !ok {
		return
	}
	w.stepping = true
	c.timers.push(timer{at: c.now + d, kind: timerStep, worker: w.number})
}

func (c *cluster) endStep(w *worker) {
	w.stepping = false
	for _, p := range w.engine.End(c.clock()) {
		c.progress(p)
	}
	c.publish(w)
	c.beginStep(w)
}

// progress tells the lease and the client what one step did for one request.
func (c *cluster) progress(p sim.Progress) {
	req := p.Seq.Tag.(*request)
	if p.FirstToken {
		req.firstToken = c.now
		req.lease.FirstToken()
	}
	if p.NewTokens > 0 {
		req.lease.Progress(p.NewTokens)
	}
	if !p.Finished {
		return
	}
	seq := req.seq
	if seq.Generated != seq.OutputTokens {
		c.err = fmt.Errorf("%s ended a request after %d of %d tokens", req.worker.rank, seq.Generated, seq.OutputTokens)
		return
	}
	req.lease.Done(router.Outcome{
		OK: true, CachedTokens: seq.CachedTokens, PromptTokens: len(seq.Tokens), OutputTokens: seq.Generated,
	})
	c.measure.finished(c.now, req)
	c.load.finished(req)
	c.claim()
}

// publish translates the engine's events of the last step and sends them on their way.
func (c *cluster) publish(w *worker) {
	raw := w.engine.Events()
	if len(raw) == 0 {
		return
	}
	net := w.translator.Apply(&kvwire.Batch{Events: raw, Rank: -1})
	if len(net) == 0 {
		return
	}
	batch := make([]kv.Event, len(net))
	for i, e := range net {
		e.Hashes = append([]kv.SequenceHash(nil), e.Hashes...)
		batch[i] = e
	}
	w.feed = append(w.feed, batch)
	c.timers.push(timer{at: c.now + c.cfg.EventDelay, kind: timerFeed, worker: w.number})
}

// deliver applies the worker's oldest batch in flight to every proxy's index.
func (c *cluster) deliver(w *worker) {
	batch := w.feed[0]
	w.feed = w.feed[1:]
	for _, p := range c.proxies {
		n, ok := p.numbers.Lookup(w.rank)
		if !ok {
			panic("BUG: event of a worker nobody holds")
		}
		x := p.index.Exact(c.cfg.Engine.BlockSize)
		for _, e := range batch {
			if refused := x.Apply(n, e); refused > 0 {
				c.err = fmt.Errorf("index refused %d blocks of %s", refused, w.rank)
			}
		}
	}
}
