package router

import (
	"slices"
	"sync"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	maxConversations = 32768
	// maxTalkProbes bounds the look-ups of one request: its chain is searched from
	// the end, where the last turn's prompt ended.
	maxTalkProbes = 512

	startTau  = 60 * time.Second
	minTau    = 20 * time.Second
	maxTau    = 300 * time.Second
	tauGaps   = 256              // return gaps remembered
	tauTrust  = 16               // gaps before they replace startTau, and between two updates
	talkEnded = 5                // a conversation idle for so many τ has ended …
	talkLife  = 15 * time.Minute // … and is forgotten after this
)

// conversations recognise a conversation's next turn without a session id: a finished
// request is known by the sequence hash at the end of its prompt, and the request
// whose chain contains that hash, further back than its own end, continues it. From
// that the router learns turns per conversation (F), the gaps after which users come
// back (τ), and where the last turn ran.
//
// Two conversations whose prompts end in the same whole block share one entry; it is
// then marked ambiguous and only counts turns.
type conversations struct {
	limit int
	mu    struct {
		sync.Mutex
		byEnd map[kv.SequenceHash]int32
		slab  []conversation // begins with the heads of the lists
		free  []int32
		gaps  []float64 // ring of seconds
		next  int
		tau   float64

		closed    []conversation // ended, not reported
		forgotten uint64         // entries dropped for room
	}
}

type conversation struct {
	prev, next int32
	list       int32
	talk
	scope scope
	idle  *idle // where its context counts while it is not over and not busy
	busy  bool  // its next turn is in flight, or failed
}

// talk is what is known of a conversation when its next turn arrives.
type talk struct {
	end       kv.SequenceHash // of its last prompt
	at        time.Time       // when its last turn ended
	turns     int
	prompt    float64       // tokens of its last prompt
	output    float64       // tokens of the answer
	shared    float64       // tokens of the prompt that are not its own
	rank      kv.WorkerRank // where its last turn ran
	ambiguous bool
}

// The lists that a conversation passes through, each with the oldest last: list i has
// those that are idle for i to i+1 times τ, the last one those that are over.
const (
	listEnded = talkEnded
	lists     = listEnded + 1
)

func newConversations(limit int) *conversations {
	c := &conversations{limit: limit}
	c.mu.byEnd = map[kv.SequenceHash]int32{}
	for i := range int32(lists) {
		c.mu.slab = append(c.mu.slab, conversation{prev: i, next: i})
	}
	c.mu.tau = startTau.Seconds()
	return c
}

func (c *conversations) tau() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.tau
}

// find returns the conversation that a request continues.
func (c *conversations) find(req *Request, s *scratch) (talk, bool) {
	p := s.prompt
	if p == nil {
		return talk{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.byEnd) == 0 {
		return talk{}, false
	}
	if !byText(p) {
		for i := range s.chains {
			chain := s.chains[i].chain
			for j, stop := len(chain)-2, max(len(chain)-2-maxTalkProbes, -1); j > stop; j-- {
				if e, ok := c.mu.byEnd[chain[j]]; ok {
					return c.mu.slab[e].talk, true
				}
			}
		}
		return talk{}, false
	}
	if req.FirstTurn {
		return talk{}, false // messages tell it
	}
	b := p.TextBoundaries
	own := b[len(b)-1]
	for j, stop := len(b)-2, max(len(b)-2-maxTalkProbes, -1); j > stop; j-- {
		if b[j] <= 0 || b[j] >= own || b[j] > len(s.text) {
			continue
		}
		if e, ok := c.mu.byEnd[s.text[b[j]-1]]; ok {
			return c.mu.slab[e].talk, true
		}
	}
	return talk{}, false
}

// byText tells whether conversations of such a prompt are known by their text, whose
// message boundaries say where the last turn may have ended. Prompts that the client
// sent as tokens have no messages.
func byText(p *kv.Prompt) bool {
	return len(p.TextBoundaries) > 0 && p.Source != kv.SourceClient
}

// gapLocked takes one return gap; τ is the 75th percentile of the last ones.
func (c *conversations) gapLocked(gap float64) {
	if len(c.mu.gaps) < tauGaps {
		c.mu.gaps = append(c.mu.gaps, gap)
	} else {
		c.mu.gaps[c.mu.next%tauGaps] = gap
	}
	if c.mu.next++; c.mu.next%tauTrust == 0 {
		g := slices.Clone(c.mu.gaps)
		slices.Sort(g)
		c.mu.tau = min(max(g[len(g)*3/4], minTau.Seconds()), maxTau.Seconds())
	}
}

// ended remembers a finished turn in place of the one before it.
func (c *conversations) ended(l *Lease, output int, now time.Time, e *expectations) {
	end, ok := l.end()
	if !ok {
		return
	}
	c.mu.Lock()
	closed := c.expireLocked(now)
	turns := 1
	if l.returning {
		if gap := l.booked.Sub(l.talk.at).Seconds(); gap >= 0 && !l.talk.ambiguous {
			c.gapLocked(gap)
		}
		turns = l.talk.turns + 1
		if old, ok := c.mu.byEnd[l.talk.end]; ok && l.talk.end != end {
			c.dropLocked(old)
		}
	}
	t := talk{end: end, at: now, turns: turns, prompt: l.prompt, output: float64(max(output, 0)), shared: l.shared, rank: l.rank.name}
	if i, ok := c.mu.byEnd[end]; ok {
		v := &c.mu.slab[i]
		t.ambiguous = v.ambiguous || !l.returning || l.talk.end != end
		t.turns = max(t.turns, v.turns)
		c.dropLocked(i)
	}
	if len(c.mu.byEnd) >= c.limit {
		list := int32(listEnded)
		for c.mu.slab[list].prev == list {
			list--
		}
		c.dropLocked(c.mu.slab[list].prev)
		c.mu.forgotten++
	}
	c.insertLocked(conversation{talk: t, scope: l.scope, idle: &l.base.idle})
	c.mu.Unlock()
	for _, v := range closed {
		e.observeTurns(v.scope, v.turns)
	}
}

// end returns the hash by which the conversation of l is known.
func (l *Lease) end() (kv.SequenceHash, bool) {
	if l.byText {
		if n := l.bounds[len(l.bounds)-1]; n > 0 && n <= len(l.text) {
			return l.text[n-1], true
		}
		return 0, false
	}
	if n := len(l.chain); n > 0 {
		return l.chain[n-1], true
	}
	return 0, false
}

// expireLocked moves conversations on to the list of their age and returns those that
// have ended, and forgets those whose life is over.
func (c *conversations) expireLocked(now time.Time) (closed []conversation) {
	c.lapseLocked(now)
	closed, c.mu.closed = c.mu.closed, nil
	return closed
}

// idleLocked returns how long a conversation of a list may be idle.
func (c *conversations) idleLocked(list int32) time.Duration {
	if list == listEnded {
		return talkLife
	}
	return seconds(float64(list+1) * c.mu.tau)
}

// lapseLocked moves conversations on to the list of their age. Those that have ended
// wait in closed.
func (c *conversations) lapseLocked(now time.Time) {
	for list := range int32(lists) {
		limit := c.idleLocked(list)
		for i := c.mu.slab[list].prev; i != list; i = c.mu.slab[list].prev {
			v := c.mu.slab[i]
			if now.Sub(v.at) < limit {
				break
			}
			c.dropLocked(i)
			if list == listEnded {
				continue
			}
			if !v.busy {
				v.idle.settle(list, v.own(), false)
			}
			v.list++
			c.insertLocked(v)
			if v.list == listEnded {
				c.mu.closed = append(c.mu.closed, v)
			}
		}
	}
}

func (c *conversations) insertLocked(v conversation) {
	var i int32
	if n := len(c.mu.free); n > 0 {
		i, c.mu.free = c.mu.free[n-1], c.mu.free[:n-1]
	} else {
		i = int32(len(c.mu.slab))
		c.mu.slab = append(c.mu.slab, conversation{})
	}
	head := v.list
	v.prev, v.next = head, c.mu.slab[head].next
	c.mu.slab[i] = v
	c.mu.slab[v.next].prev = i
	c.mu.slab[head].next = i
	c.mu.byEnd[v.end] = i
	if v.list < listEnded && !v.busy {
		v.idle[v.list].tokens += v.own()
	}
}

func (c *conversations) dropLocked(i int32) {
	v := &c.mu.slab[i]
	if v.list < listEnded && !v.busy {
		v.idle[v.list].tokens -= v.own()
	}
	c.mu.slab[v.prev].next = v.next
	c.mu.slab[v.next].prev = v.prev
	delete(c.mu.byEnd, v.end)
	*v = conversation{}
	c.mu.free = append(c.mu.free, i)
}

func (c *conversations) stats() (entries int, tau float64, forgotten uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.byEnd), c.mu.tau, c.mu.forgotten
}
