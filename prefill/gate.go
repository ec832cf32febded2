package prefill

import (
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	minGain = 20 * time.Millisecond // of predicted prefill; less is not worth a request
	// maxBusy is the share of the last minute with clients' prefill waiting above which
	// a worker is left alone: its queue never empties for long, so a warm-up only moves
	// work in front of others'.
	maxBusy = 0.6
	// idleShare is what warming may take of a worker's idle time.
	idleShare = 0.5
)

// verdict is what a warm-up would do at this moment.
type verdict struct {
	worker    kv.WorkerRank
	blockSize int
	live      int // tokens that the worker holds anyway
	gain      int // tokens that the warm-up adds
	tail      kv.SequenceHash
	blocks    int
	busy      float64 // share of the last minute
	seconds   float64 // gain ÷ R
	engine    string
	drafts    bool   // the engine decodes with drafts
	from      string // what live rests on
	expect    forecast
}

// What live rests on.
const (
	liveEvents    = "events"    // the engine told of its blocks
	liveRouted    = "routed"    // what was routed there before
	liveGenerated = "generated" // the finished turn's prompt and the ids of its reply
	livePrompt    = "prompt"    // the finished turn's prompt, and whether it reasoned
	liveBytes     = "bytes"     // how much was said
)

func (v *verdict) warmth() warmth {
	return warmth{worker: v.worker, blockSize: v.blockSize, live: v.live, gain: v.gain, tail: v.tail, blocks: v.blocks, seconds: v.seconds, busy: v.busy, from: v.from}
}

// goesOn notes that a warm-up that gave way is sent again. What it has left already is
// part of its gain.
func (w *warmth) goesOn(v *verdict) {
	next := v.warmth()
	if v.worker == w.worker {
		next.gain, next.live = max(v.live+v.gain-w.live, v.gain), min(w.live, v.live)
	}
	*w = next
}

// judge asks every gate. A reason says which one is shut, and again whether it may open
// soon.
func (p *Prefiller) judge(j *job, w *plan) (v verdict, reason string, again bool) {
	o, err := p.cfg.Router.Outlook(&router.Request{
		Model: j.turn.id.model, Key: j.turn.id.key, Prompt: w.prompt, MaxTokens: w.maxTokens, PinRank: -1,
	})
	if err != nil {
		return v, skipWorker, false
	}
	if j.turn.mode == ModeAuto && !holdsCache(&o) {
		return v, skipGeneric, false
	}
	v = gain(j, w, &o)
	v.seconds = float64(v.gain) / o.Rate
	if v.gain < o.BlockSize || v.seconds < minGain.Seconds() {
		return v, skipGain, false
	}
	if o.Over > 0 {
		v.busy = o.Busy.Seconds() / o.Over.Seconds()
	}
	now := time.Now()
	p.mu.Lock()
	p.mu.tau, p.mu.stay = time.Duration(o.AgeScale*float64(time.Second)), o.Residency
	v.expect = p.mu.learn.forecast(j.c.scope, now.Sub(j.ended).Seconds(), v.seconds, o.Residency)
	pause := p.mu.pauses[o.Worker.ID].Sub(now)
	p.mu.Unlock()
	if v.expect.Saved <= costs(&o, v.expect.Resident, v.seconds) {
		return v, skipCost, false
	}
	if reason = spareTime(&o, v.seconds); reason != "" {
		return v, reason, false
	}
	switch {
	case pause > 0:
		return v, skipRetryAfter, now.Add(pause).Before(j.ended.Add(jobLife))
	case taken(&o):
		return v, skipLoad, true
	}
	return v, "", false
}

// costs returns the seconds that others lose by a warm-up of so many seconds: to eviction
// and, where it is not used, by standing still behind it (¼·n·P, as router/doc.go has it).
func costs(o *router.Outlook, used, seconds float64) float64 {
	return o.Evict + (1-used)*0.25*float64(o.Inflight)*seconds
}

// spareTime tells why so many seconds do not fit into a worker's idle time, "" where they do.
func spareTime(o *router.Outlook, seconds float64) (reason string) {
	switch busy := o.Busy.Seconds(); {
	case o.Over > 0 && busy > maxBusy*o.Over.Seconds():
		return skipLoad
	case o.Warmed.Seconds()+seconds > idleShare*(o.Over.Seconds()-busy):
		return skipBudget
	}
	return ""
}

// taken tells whether a worker has other things to do at this moment.
func taken(o *router.Outlook) bool { return o.Waiting > 0 || o.Warming >= maxPerWorker || o.Full }

// gain finds what the worker holds of the next turn's prompt anyway and what a warm-up
// would add.
//
//	tokens known, worker tells its blocks   whole blocks beyond those it holds
//	… no events, the reply's ids known      whole blocks beyond its prompt and reply
//	… no events                             beyond where the next prompt leaves this one's
//	tokens not known                        what was said since the user's last message,
//	                                        by bytes; only if reasoning will be dropped
//
// A worker that ran the turn has cached its reply too, unless reasoning precedes it that
// the next prompt lacks: without events that is the only reason to warm it. An engine that
// decodes with drafts drops the last block of each match, so one block is of no use.
func gain(j *job, w *plan, o *router.Outlook) verdict {
	v := verdict{worker: o.Worker, blockSize: o.BlockSize, engine: o.Engine, drafts: o.Drafts}
	same := o.Worker == j.c.served
	if w.prefix > 0 {
		v.blocks = w.prefix / o.BlockSize
		end := v.blocks * o.BlockSize
		if v.blocks > 0 {
			v.tail = w.prompt.Chain(o.BlockSize)[v.blocks-1]
		}
		v.live, v.from = held(j, w, o, same, end)
		v.live = min(v.live, end)
		if v.drafts {
			v.live, end = max(v.live-o.BlockSize, 0), max(end-o.BlockSize, 0)
		}
		v.gain = end - v.live
		if o.Coverage != router.FeedNone || w.known || !same {
			return v
		}
	}
	v.from = liveBytes
	if !same {
		v.gain = max(o.PromptTokens-o.OverlapTokens, 0)
		v.live = o.PromptTokens - v.gain
		return v
	}
	v.gain = 0
	if j.c.thought {
		perToken := w.prompt.BytesPerToken
		if b := j.end.Prompt; b != nil && b.BytesPerToken > 0 {
			perToken = b.BytesPerToken
		}
		if perToken > 0 {
			v.gain = int(float64(w.visible) / perToken)
		}
	}
	whole := o.PromptTokens
	if n := j.end.Usage.PromptTokens; n >= 0 && j.end.Prompt != nil {
		whole = n + max(o.PromptTokens-j.end.Prompt.TokenCount, 0)
	}
	v.live = max(whole-v.gain, 0)
	return v
}

// held returns the tokens of the warm prefix, which has end of them in whole blocks, that
// the worker holds, and how that is known.
func held(j *job, w *plan, o *router.Outlook, same bool, end int) (tokens int, from string) {
	from = liveEvents
	if o.Coverage == router.FeedNone {
		from = liveRouted
	}
	ran := o.Coverage != router.FeedComplete && same
	switch {
	case ran && w.generated >= 0:
		if n := w.generated / o.BlockSize * o.BlockSize; o.Coverage == router.FeedNone || n > o.OverlapTokens {
			return n, liveGenerated
		}
	case ran && w.known && o.Coverage == router.FeedNone:
		leaves := w.shared < len(j.end.Prompt.Tokens)
		if !leaves && !j.c.thought {
			return end, livePrompt
		}
		return w.shared / o.BlockSize * o.BlockSize, livePrompt
	}
	return o.OverlapTokens, from
}

// holdsCache tells whether a worker is known to keep prefixes.
func holdsCache(o *router.Outlook) bool {
	switch o.Engine {
	case "vllm", "sglang", "llamacpp", "trtllm":
		return true
	}
	return o.Coverage != router.FeedNone
}
