package prefill

import (
	"bytes"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// Arrival is what Arrived reads of a request. Nothing of it is kept after the call but
// copies.
type Arrival struct {
	Request   *openai.Request
	Body      []byte // that Request was parsed from
	Namespace kv.Namespace
	Key       string // tenant, as router.Request.Key
	Hint      string // value of the header X-Speculative-Prefill
}

// End is how an answer ended.
type End struct {
	OK     bool          // status 200, and the client received all of it up to the finish
	Worker kv.WorkerRank // that answered
	Prompt *kv.Prompt    // of the request; handed over
	TTFT   time.Duration // of a stream; 0: not seen
	Usage  openai.Usage

	// The header lines and the Authorization that the worker got. Handed over.
	Header, Authorization []byte
}

// Turn is one request while it is answered. Its methods are for one goroutine at a
// time. A nil Turn takes every call.
type Turn struct {
	p        *Prefiller
	mode     Mode
	skip     string // why no warm-up will follow, as far as the request tells
	id       identity
	key      uint64
	messages int
	body     []byte
	reply    reply
	held     int64         // bytes that count against the cap
	prev     *conversation // that this turn continues
	met      met           // the same at another proxy
	state    string
	thought  bool // reasoning was seen since the last user's message
	first    bool // no assistant message yet
	user     bool // the last message is a user's
	ended    bool
	own      habit  // how this conversation's client writes replies back
	came     string // what this turn's messages have other than was assumed, "" for nothing
}

// Arrived tells that a request came in. If it is the next turn of a conversation, a
// warm-up that waits or is under way for it is cancelled, which takes its booking out
// of the router. It never waits. The Turn is nil where there is nothing to do; otherwise
// its Finish must be called, on every path.
func (p *Prefiller) Arrived(a Arrival) *Turn {
	if p == nil || a.Request.Kind != openai.Chat {
		return nil
	}
	mode := hinted(a.Hint)
	if mode == "" && a.Request.HintSpeculative != nil {
		mode = ModeOff
		if *a.Request.HintSpeculative {
			mode = ModeOn
		}
	}
	if mode == "" {
		mode = p.cfg.mode(a.Request.Model, a.Key)
	}
	wanted := mode == ModeOn || mode == ModeAuto
	abroad := p.abroad.Load() > 0
	if !wanted && p.idle() && !abroad {
		return nil
	}
	t := &Turn{p: p, id: identity{a.Request.Model, a.Key, a.Namespace}, messages: len(a.Request.Messages), first: a.Request.FirstTurn, user: lastUser(a.Request)}
	buf := p.sums.Get().(*[]uint64)
	hashes := sums((*buf)[:0], p.seed, t.id, a.Body, a.Request)
	t.key = hashes[len(hashes)-1]
	t.prev = p.returned(hashes)
	*buf = hashes
	p.sums.Put(buf)
	if t.prev != nil {
		t.state = t.prev.state
		t.learn(&a)
	}
	if !wanted {
		if t.prev == nil && !abroad {
			return nil
		}
		return t
	}
	t.mode = mode
	if last := a.Request.Messages[t.messages-1].Role; t.prev != nil && last != "user" {
		t.thought = t.prev.thought
	}
	switch {
	case a.Request.N > 1:
		t.skip = skipShape
	case !t.hold(int64(len(a.Body))):
		t.skip = skipBytes
	default:
		t.body = bytes.Clone(a.Body)
	}
	return t
}

// learn compares what came with what was assumed.
func (t *Turn) learn(a *Arrival) {
	c, p := t.prev, t.p
	h := seen(a.Body, a.Request, c.messages, c.said)
	t.own = h.over(c.own)
	t.came = c.expect.differs(a.Body, a.Request, p.seed, c.messages)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.habits.note(c.scope, h) {
		p.metrics.habits.Inc()
	}
}

// ValidHint tells whether the header's value can be read; nothing is a valid value.
func ValidHint(value string) bool {
	return strings.TrimSpace(value) == "" || hinted(value) != ""
}

// hinted reads the header; "" where it says nothing.
func hinted(value string) Mode {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "1", "true", "on", "yes":
		return ModeOn
	case "0", "false", "off", "no":
		return ModeOff
	case "auto":
		return ModeAuto
	}
	return ""
}

// Routed tells where the turn's request goes, with its prompt. It never waits.
func (t *Turn) Routed(l *router.Lease, prompt *kv.Prompt) {
	if t == nil {
		return
	}
	t.meet(prompt)
	t.replicate(l, prompt)
}

// State tells what became of the warm-up for this turn: "warmed", "late", "cancelled",
// "holdout", "failed" or "skipped:reason"; "" where this is the next turn of nothing.
func (t *Turn) State() string {
	if t == nil {
		return ""
	}
	return t.state
}

// Wanted tells whether a warm-up may follow this turn, so that its header lines are
// needed at the end.
func (t *Turn) Wanted() bool { return t != nil && t.mode != "" && t.skip == "" }

// Observe reads one event of the answer's stream.
func (t *Turn) Observe(ev openai.Event) {
	if !t.Wanted() {
		return
	}
	t.reply.observe(ev)
	t.grown()
}

// Response reads an answer that is not a stream.
func (t *Turn) Response(body []byte) {
	if !t.Wanted() {
		return
	}
	t.reply.read(body)
	t.grown()
}

// grown counts what the reply holds against the caps.
func (t *Turn) grown() {
	more := int64(len(t.body)+t.reply.size()) - t.held
	if more > 0 && !t.hold(more) {
		t.skip = skipBytes
		t.drop()
	}
}

// hold counts n more bytes and tells whether there is room for them.
func (t *Turn) hold(n int64) bool {
	if t.held+n > maxTurnBytes {
		return false
	}
	if !t.p.hold(n) {
		return false
	}
	t.held += n
	return true
}

// drop lets go of everything that is held.
func (t *Turn) drop() {
	t.body, t.reply = nil, reply{}
	t.p.held.Add(-t.held)
	t.held = 0
}

// Finish tells how the answer ended: it settles the warm-up that this turn came after
// and queues the one for the next. Calls after the first do nothing.
func (t *Turn) Finish(e End) {
	if t == nil || t.ended {
		return
	}
	t.ended = true
	p := t.p
	if t.prev != nil {
		p.verified(t.prev, e.Prompt, t.came)
		p.settle(t.prev, &e)
		t.prev = nil
	}
	t.settleAbroad(&e)
	if t.mode == "" {
		return
	}
	p.learn(t, &e)
	reason, trigger := t.skip, Trigger("")
	if reason == "" && !(e.OK && t.reply.finished) {
		reason = skipIncomplete
	}
	if reason == "" {
		reason, trigger = t.reply.check()
		t.thought = t.thought || t.reply.thought() || t.reply.thoughtInline()
	}
	label := string(trigger)
	if label == "" {
		label = "none"
	}
	p.metrics.turns.WithLabelValues(label).Inc()
	if reason != "" {
		t.drop()
		p.metrics.outcome(outcomeSkipped, reason)
		return
	}
	p.queue(t, trigger, e)
}
