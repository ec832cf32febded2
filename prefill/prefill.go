package prefill

import (
	"context"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// Prefiller warms next turns. It is safe for concurrent use.
type Prefiller struct {
	cfg     Config
	seed    maphash.Seed
	sums    sync.Pool
	held    atomic.Int64 // bytes of bodies and replies
	open    atomic.Int64 // conversations in the table
	sending atomic.Int64 // warm-ups under way
	abroad  atomic.Int64 // warm-ups of other proxies
	wake    chan struct{}
	metrics *metrics

	admit sync.Mutex // held from the last look at a worker to the booking there; before mu

	mu struct {
		sync.Mutex
		table       table
		jobs        []*job // oldest first
		fresh       []*job // of them, those that Run has not started
		pauses      map[string]time.Time
		chats       map[string]time.Time // workers that take no token ids, and until when
		refused     map[string]time.Time // workers that take no copies, and until when
		habits      habits
		learn       learning
		rand        *rand.Rand
		tau         time.Duration // age scale that the router told last
		stay        float64       // residency that the router told last, seconds
		heads       heads
		copies      []*copying // on their way
		joining     map[string]time.Time
		replicating map[kv.WorkerRank]bool
		budget      budgets
		planted     planted
		rewarming   rewarming
		tasks       []func(context.Context) // that Run has not started

		recent [maxRecent]Record
		next   int
		closed bool

		peering peering

		tokens     map[string]int // by kind
		tokensOpen int            // sent, and their next turn is still to come
	}
}

// job is one warm-up from the end of its turn to its own end. Guarded by Prefiller.mu,
// but for what never changes.
type job struct {
	c       *conversation
	turn    *Turn
	trigger Trigger
	ended   time.Time // of the turn
	end     End

	cancel context.CancelFunc // nil until Run has started it
	cut    context.CancelFunc // of the request under way
	lease  *router.Lease      // nil while it is not under way
	sent   time.Time          // when it was sent last
	tries  int                // how often
	over   bool               // its outcome is decided, or is up to the next turn

	// Since its last look at the worker, where that was taken:
	waits kv.WorkerRank // for whom it waits; ID "": for nobody
	worth float64       // expected seconds saved for each second of the engine
	poke  chan struct{} // a look before its time is wanted
}

// New returns a Prefiller; Run makes it work. It panics where Config.Validate fails.
func New(cfg Config) *Prefiller {
	if err := cfg.Validate(); err != nil {
		panic("BUG: " + err.Error())
	}
	if cfg.Holdout == 0 {
		cfg.Holdout = defaultHoldout
	}
	if cfg.HeldBytes == 0 {
		cfg.HeldBytes = defaultHeldBytes
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	p := &Prefiller{cfg: cfg, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1)}
	p.sums.New = func() any { return new([]uint64) }
	p.mu.table.init()
	p.mu.table.gone = p.unkeepLocked
	p.mu.rewarming.init()
	p.mu.pauses = map[string]time.Time{}
	p.mu.chats, p.mu.refused, p.mu.habits = map[string]time.Time{}, map[string]time.Time{}, habits{}
	p.mu.tokens = map[string]int{}
	p.mu.peering.away, p.mu.peering.abroad = map[uint64]*conversation{}, map[string][]kv.WarmUp{}
	p.mu.stay = math.Inf(1)
	p.mu.learn.init()
	p.mu.rand = rand.New(rand.NewPCG(cfg.Seed, 0x5bec))
	p.mu.tau = time.Minute
	p.metrics = newMetrics(p, cfg.Registerer)
	p.mu.heads.init(cfg.HeldBytes/headShare, p.hold, func(n int64) { p.held.Add(-n) })
	p.mu.joining = map[string]time.Time{}
	p.mu.replicating = map[kv.WorkerRank]bool{}
	p.mu.budget = budgets{spent: map[Trigger]float64{}, at: time.Now()}
	p.mu.planted.done = func(t Trigger, used bool, tokens int) {
		p.metrics.planted(t, used, tokens)
		if t == TriggerRewarm {
			p.mu.rewarming.settled(used, tokens)
		}
	}
	return p
}

// Run works until ctx ends. Then what waits is dropped, what is under way is cancelled,
// and every goroutine has returned when Run does.
func (p *Prefiller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	caches := map[kv.WorkerRank]int{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.sweep(time.Now())
			p.evacuate()
			p.tend(caches)
		case <-p.wake:
			p.mu.Lock()
			fresh := p.mu.fresh
			p.mu.fresh = nil
			tasks := p.mu.tasks
			p.mu.tasks = nil
			p.mu.Unlock()
			for _, task := range tasks {
				wg.Go(func() { task(ctx) })
			}
			for _, j := range fresh {
				wg.Go(func() { p.work(ctx, j) })
			}
		}
	}
}

// close drops every warm-up and takes no more.
func (p *Prefiller) close() {
	p.mu.Lock()
	p.mu.closed = true
	jobs := append([]*job(nil), p.mu.jobs...)
	tasks := p.mu.tasks
	p.mu.tasks = nil
	p.mu.heads.clear()
	for _, e := range p.mu.rewarming.byKey {
		p.unkeepLocked(e.Value.(*kept).c)
	}
	p.mu.Unlock()
	for _, j := range jobs {
		p.stop(j, outcomeSkipped, skipShutdown)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for _, task := range tasks {
		task(over) // gives back what it holds
	}
}

// hold counts n more bytes and tells whether there is room for them.
func (p *Prefiller) hold(n int64) bool {
	if p.held.Add(n) > p.cfg.HeldBytes {
		p.held.Add(-n)
		return false
	}
	return true
}

// Pause keeps warm-ups from a worker for a while: it answered a request with Retry-After.
func (p *Prefiller) Pause(worker string, d time.Duration) {
	if p == nil || d <= 0 {
		return
	}
	until := time.Now().Add(min(d, time.Hour))
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.mu.pauses[worker]; (known || len(p.mu.pauses) < maxPauses) && until.After(p.mu.pauses[worker]) {
		p.mu.pauses[worker] = until
	}
}

const maxPauses = 4096

// idle tells whether no conversation waits for its next turn.
func (p *Prefiller) idle() bool { return p.open.Load() == 0 }

func (p *Prefiller) sizes() (conversations, jobs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.table.byKey), len(p.mu.jobs)
}

// queue opens the conversation of a finished turn and queues its warm-up.
func (p *Prefiller) queue(t *Turn, trigger Trigger, e End) {
	now := time.Now()
	if e.Prompt != nil && !t.hold(int64(4*len(e.Prompt.Tokens))) {
		e.Prompt = nil // it only sharpens the estimate for workers without events
	}
	c := &conversation{
		key: t.key, messages: t.messages, scope: scope{t.id.key, t.id.model, trigger},
		served: e.Worker, ended: now, thought: t.thought, said: t.reply.said(), own: t.own,
	}
	j := &job{c: c, turn: t, trigger: trigger, ended: now, end: e, poke: make(chan struct{}, 1)}
	c.job = j
	c.open = true

	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		t.drop()
		p.metrics.outcome(outcomeSkipped, skipShutdown)
		return
	}
	old := p.mu.table.byKey[c.key]
	if old == nil && len(p.mu.table.byKey) >= maxConversations {
		old = p.mu.table.oldest()
		p.metrics.forgotten.Inc()
	}
	if old != nil {
		p.mu.table.remove(old)
		p.unshareLocked(old)
	}
	p.mu.table.add(c)
	p.keepLocked(c, t, &e)
	p.open.Store(int64(len(p.mu.table.byKey)))
	var dropped *job
	if len(p.mu.jobs) >= maxJobs {
		for _, k := range p.mu.jobs {
			if k.lease == nil {
				dropped = k
				break
			}
		}
	}
	p.mu.jobs = append(p.mu.jobs, j)
	p.mu.fresh = append(p.mu.fresh, j)
	p.mu.Unlock()

	if old != nil {
		p.replaced(old)
	}
	if dropped != nil {
		p.stop(dropped, outcomeSkipped, skipQueue)
	}
	nudge(p.wake)
}

// replaced ends a conversation that gave way to another.
func (p *Prefiller) replaced(c *conversation) {
	p.mu.Lock()
	j := c.job
	p.mu.Unlock()
	if j != nil {
		p.stop(j, outcomeSkipped, skipSuperseded)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked(c, outcomeWasted, wasteReplaced)
	p.forgetTokensLocked(&c.warm)
}

// closeLocked counts the outcome of a conversation, if it is still to come.
func (p *Prefiller) closeLocked(c *conversation, outcome, reason string) bool {
	if !c.open {
		return false
	}
	c.open = false
	p.metrics.outcome(outcome, reason)
	return true
}

// stop ends a warm-up before its answer: one that waits is dropped, one that is under
// way is cancelled. It tells whether there was one to end. outcome is that of one that
// was never sent; one that was sent counts as cancelled.
func (p *Prefiller) stop(j *job, outcome, reason string) bool {
	p.mu.Lock()
	if j.over {
		p.mu.Unlock()
		return false
	}
	lease, cancel := j.lease, j.cancel
	if lease != nil {
		p.recallLocked(j)
	}
	p.endLocked(j)
	if j.tries > 0 {
		outcome = outcomeCancelled
		j.c.warm.cancelled = true
		p.recordLocked(j, outcome, reason)
	}
	j.c.state = outcome
	if outcome == outcomeSkipped {
		j.c.state += ":" + reason
	}
	p.closeLocked(j.c, outcome, reason)
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	} else {
		j.turn.drop() // Run will find it over
	}
	if lease != nil {
		lease.Done(noOutcome)
	}
	return true
}

// endLocked takes a job out of the queue.
func (p *Prefiller) endLocked(j *job) {
	j.over = true
	j.c.job = nil
	p.mu.jobs, _ = without(p.mu.jobs, j)
	p.mu.fresh, _ = without(p.mu.fresh, j)
}

// without takes v out of a list and tells whether it was there.
func without[T comparable](list []T, v T) ([]T, bool) {
	i := slices.Index(list, v)
	if i < 0 {
		return list, false
	}
	return slices.Delete(list, i, i+1), true
}

// returned closes the conversation that a request continues and cancels its warm-up. A
// request that is sent once more cancels the warm-up for its first answer, too.
func (p *Prefiller) returned(hashes []uint64) *conversation {
	p.mu.Lock()
	c := p.mu.table.find(hashes)
	if c == nil {
		var j *job
		if again := p.mu.table.byKey[hashes[len(hashes)-1]]; again != nil {
			j = again.job
		}
		p.mu.Unlock()
		if j != nil {
			p.stop(j, outcomeSkipped, skipSuperseded)
		}
		return nil
	}
	p.leaveLocked(c)
	j := c.job
	p.mu.Unlock()
	if j != nil {
		p.stop(j, outcomeLate, lateTurn)
	}
	p.recallFor(c)
	return c
}

// leaveLocked takes the conversation out whose next turn has come.
func (p *Prefiller) leaveLocked(c *conversation) {
	p.mu.table.remove(c)
	p.open.Store(int64(len(p.mu.table.byKey)))
	p.unshareLocked(c)
	if !c.overdue {
		gap := time.Since(c.ended)
		p.mu.learn.back(c.scope, gap)
		p.metrics.gaps.WithLabelValues(string(c.scope.trigger)).Observe(gap.Seconds())
	}
	if c.warm.gain > 0 {
		p.metrics.seen(c.scope.trigger, eventReturn)
		if c.job == nil && c.state == stateWarmed {
			p.metrics.seen(c.scope.trigger, eventInTime)
		}
	}
}

// sweep closes what has waited for too long. A conversation is not expected back after
// five times the age scale τ of the cache; it may still come until 15 minutes are over.
func (p *Prefiller) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.mu.table
	patience := min(5*p.mu.tau, openLife)
	for e := t.order[0].Front(); e != nil && now.Sub(e.Value.(*conversation).ended) >= patience; e = t.order[0].Front() {
		c := e.Value.(*conversation)
		p.mu.learn.lost(c.scope)
		t.late(c)
	}
	for e := t.order[1].Front(); e != nil && now.Sub(e.Value.(*conversation).ended) >= openLife; e = t.order[1].Front() {
		c := e.Value.(*conversation)
		t.remove(c)
		p.unshareLocked(c)
		p.closeLocked(c, outcomeWasted, wasteNoReturn)
		p.forgetTokensLocked(&c.warm)
	}
	p.open.Store(int64(len(t.byKey)))
	p.sweepAwayLocked(now)
	for worker, until := range p.mu.pauses {
		if !until.After(now) {
			delete(p.mu.pauses, worker)
		}
	}
}
