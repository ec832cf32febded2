package prefill

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	copyRetry   = 20 * time.Millisecond // before a worker that may not take a copy yet is asked again
	copyRefusal = 10 * time.Minute      // for which a worker that refused a copy gets no other
	workMemory  = 10 * time.Minute      // e-folding time of the clients' prefill that budgets are shares of
)

// copyHeader is the header of a warm-up that is in nobody's name.
var copyHeader = []byte("Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: warmroute\r\n")

// prefix is the start of prompts by its tokens. Its owner counts its size.
type prefix struct {
	model  string
	ns     kv.Namespace
	tokens []uint32
}

// size returns the bytes that a prefix holds. Clients choose salts, of any length.
func (x *prefix) size() int64 {
	return int64(4*len(x.tokens) + len(x.model) + len(x.ns.LoRA) + len(x.ns.Salt))
}

func (x *prefix) prompt() *kv.Prompt {
	return &kv.Prompt{Source: kv.SourceLocal, Namespace: x.ns, Tokens: x.tokens, TokenCount: len(x.tokens)}
}

// pathCopy is where copies go.
const pathCopy = "/v1/completions"

// warmup returns the request that makes a worker compute a prefix and nothing else. Token
// ids are the only form that ends in the middle of a conversation.
func (x *prefix) warmup(to kv.WorkerRank, sendRank bool) *Warmup {
	body := openai.AppendString([]byte(`{"model":`), x.model)
	if x.ns.Salt != "" {
		body = openai.AppendString(append(body, `,"cache_salt":`...), x.ns.Salt)
	}
	f := form{native: natives["vllm"], tokens: len(x.tokens)} // OpenAI's completions, which other engines know, too
	body = f.request(nil, append(body, '}'), x.tokens, "")
	rank := ""
	if sendRank {
		rank = strconv.Itoa(to.Rank)
	}
	return &Warmup{Worker: to, Path: pathCopy, Body: body, Header: warmHeader(nil, copyHeader, newID(), rank)}
}

// copying is one prefix on its way to one rank. Its fields from sent on are guarded by
// Prefiller.mu.
type copying struct {
	prefix
	trigger Trigger
	to      kv.WorkerRank
	of      *conversation // whose prefix it is; nil: nobody's

	sent      time.Time
	gain      int // tokens
	live      int // tokens that were there
	lease     *router.Lease
	cut       context.CancelFunc
	cancelled string // why; "" where it was not
}

// The outcomes of copies, in metrics and records; skipped has the reasons of turns.
const (
	copyWarmed    = "warmed"
	copyCancelled = "cancelled"
	copyFailed    = "failed"
	copySkipped   = "skipped"
)

const (
	cutYield    = "yield"    // a client's request came to the rank
	cutWorker   = "worker"   // the worker drains or has left
	cutDeadline = "deadline" // the trigger's time was over
)

// gate says what stands against a copy that takes so many seconds; a reason ends the attempt.
type gate func(o *router.Outlook, seconds float64) (reason string)

// copy sends a prefix to its rank if every gate is open, g (which may be nil) included, and
// waits for the answer. It never waits for a gate: whoever calls may come again.
func (p *Prefiller) copy(ctx context.Context, c *copying, g gate) (outcome, reason string, again bool) {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	reason, again = p.book(ctx, c, g, cut)
	if reason != "" {
		p.metrics.copies.WithLabelValues(string(c.trigger), copySkipped, reason).Inc()
		return copySkipped, reason, again
	}
	p.yieldLate(c.to, c.model)
	a, err := p.dispatch(ctx, c.warmup(c.to, c.lease.SendRank()))
	outcome, reason = p.copied(ctx, c, a, err)
	return outcome, reason, outcome == copyCancelled && reason == cutYield
}

// book takes the last look at the rank and books the copy there.
func (p *Prefiller) book(ctx context.Context, c *copying, g gate, cut context.CancelFunc) (reason string, again bool) {
	p.admit.Lock()
	defer p.admit.Unlock()
	ask := router.Request{Model: c.model, Prompt: c.prompt(), MaxTokens: 1, PinWorker: c.to.ID, PinRank: c.to.Rank, Speculative: true}
	o, err := p.cfg.Router.Outlook(&ask)
	if err != nil {
		return skipWorker, true
	}
	whole := len(c.tokens) / o.BlockSize * o.BlockSize
	gain := max(whole-o.OverlapTokens, 0)
	if reason, again := p.passes(&o, gain, c.trigger); reason != "" {
		return reason, again
	}
	if g != nil {
		if reason := g(&o, float64(gain)/o.Rate); reason != "" {
			return reason, false
		}
	}
	lease, err := p.cfg.Router.Route(ctx, &ask)
	if err != nil {
		return skipWorker, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		lease.Done(noOutcome)
		return skipShutdown, false
	}
	c.lease, c.cut, c.sent, c.gain, c.live = lease, cut, time.Now(), gain, whole-gain
	p.mu.copies = append(p.mu.copies, c)
	p.mu.budget.spend(c.trigger, float64(gain)/o.Rate)
	p.sending.Add(1)
	p.metrics.inflight.Inc()
	p.metrics.sent.WithLabelValues(string(c.trigger)).Inc()
	p.metrics.copyTokens.WithLabelValues(string(c.trigger)).Add(float64(gain))
	return "", false
}

// passes asks the gates that all copies share: never to a worker that keeps no prefixes
// or takes no token ids, for next to nothing, beside clients who wait, or beyond the trigger's budget.
func (p *Prefiller) passes(o *router.Outlook, gain int, t Trigger) (reason string, again bool) {
	seconds := float64(gain) / o.Rate
	if !holdsCache(o) {
		return skipGeneric, false
	}
	if gain < o.BlockSize || seconds < minGain.Seconds() {
		return skipGain, false
	}
	now := time.Now()
	p.mu.Lock()
	paused := p.mu.pauses[o.Worker.ID].After(now)
	refused := p.mu.refused[o.Worker.ID].After(now)
	if n := natives[o.Engine]; n != nil && n.path == pathCopy {
		refused = refused || p.mu.chats[o.Worker.ID].After(now)
	}
	room := p.mu.budget.room(t)
	p.mu.Unlock()
	switch {
	case refused:
		return skipRefused, false
	case paused:
		return skipRetryAfter, true
	case taken(o):
		return skipLoad, true
	case seconds > room:
		return skipBudget, false
	}
	return "", false
}

// copied takes a copy that is over out of the books.
func (p *Prefiller) copied(ctx context.Context, c *copying, a Answer, err error) (outcome, reason string) {
	p.metrics.inflight.Dec()
	p.mu.Lock()
	why := c.cancelled
	if why == "" {
		p.forgetLocked(c)
	}
	switch {
	case why != "":
		outcome, reason = copyCancelled, why
	case ctx.Err() != nil:
		outcome, reason = copyCancelled, cutDeadline
	case err != nil || !a.ok():
		outcome, reason = copyFailed, failure(a, err)
	default:
		outcome = copyWarmed
		p.mu.planted.add(c)
	}
	p.noteLocked(Record{
		Time: c.sent, Model: c.model, Trigger: c.trigger, Worker: c.to, LiveTokens: c.live, GainTokens: c.gain,
		Seconds: time.Since(c.sent).Seconds(), Outcome: outcome, Reason: reason,
	})
	p.mu.Unlock()
	p.metrics.copies.WithLabelValues(string(c.trigger), outcome, reason).Inc()
	switch {
	case why != "":
		return outcome, reason // whoever cancelled it has ended the booking
	case outcome == copyWarmed:
		c.lease.Done(answered(a))
	default:
		c.lease.Done(noOutcome)
	}
	switch {
	case outcome != copyFailed:
	case reason == "http_4xx" || reason == "void": // turns' warm-ups, in their clients' names and as chats, may pass
		p.refuse(c.to.ID)
	default:
		p.Pause(c.to.ID, max(a.RetryAfter, failurePause))
	}
	return outcome, reason
}

// refuse keeps copies from a worker for a while: it takes no token ids, or nothing without
// a client's credentials.
func (p *Prefiller) refuse(worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	remember(p.mu.refused, worker, copyRefusal)
}

// recallCopiesLocked cancels the copies on their way for which of is true, and returns
// their leases, which are to be given back without the lock.
func (p *Prefiller) recallCopiesLocked(why string, of func(*copying) bool) (leases []*router.Lease) {
	for i := len(p.mu.copies) - 1; i >= 0; i-- {
		if c := p.mu.copies[i]; of(c) {
			c.cancelled = why
			c.cut()
			p.forgetLocked(c)
			leases = append(leases, c.lease)
		}
	}
	return leases
}

// recallFor cancels the copies for a conversation that has gone on.
func (p *Prefiller) recallFor(c *conversation) {
	if p.sending.Load() == 0 {
		return
	}
	p.mu.Lock()
	leases := p.recallCopiesLocked(lateTurn, func(k *copying) bool { return k.of == c })
	p.mu.Unlock()
	for _, l := range leases {
		l.Done(noOutcome)
	}
}

func (p *Prefiller) forgetLocked(c *copying) {
	var was bool
	if p.mu.copies, was = without(p.mu.copies, c); was {
		p.sending.Add(-1)
	}
}

// evacuateCopies cancels the copies on workers that take no more requests.
func (p *Prefiller) evacuateCopies() {
	p.mu.Lock()
	list := slices.Clone(p.mu.copies)
	p.mu.Unlock()
	for _, c := range list {
		if !c.lease.Leaves() {
			continue
		}
		p.mu.Lock()
		leases := p.recallCopiesLocked(cutWorker, func(k *copying) bool { return k == c })
		p.mu.Unlock()
		for _, l := range leases {
			l.Done(noOutcome)
		}
	}
}

// start makes Run run a task, which ends soon after its context does. It tells whether
// that will come.
func (p *Prefiller) start(task func(context.Context)) bool {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return false
	}
	p.mu.tasks = append(p.mu.tasks, task)
	p.mu.Unlock()
	nudge(p.wake)
	return true
}
