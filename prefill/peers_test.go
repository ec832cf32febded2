package prefill

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// link carries what two Prefillers tell each other, as router/events does: 20 ms late, and
// some of it never.
type link struct {
	a, b *Prefiller
	loss float64

	mu   sync.Mutex
	rand *rand.Rand
}

func (l *link) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.Float64() < l.loss
}

// run tells b of a's warm-ups, as often as proxies do, until the test is over.
func (l *link) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		if all := l.a.Outstanding(nil); !l.lost() {
			l.b.Elsewhere("a", all)
		}
	}
}

// otherProxy plays conversations that begin at one proxy and go on at another.
func otherProxy(t *testing.T, loss float64, think time.Duration, turns int) (states map[string]int, g *rig) {
	states = map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		l := &link{loss: loss, rand: rand.New(rand.NewPCG(5, 6))}
		g = newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: ModeOn, Peers: Peers{Changed: func() {}, Meet: func(kv.Meeting) {}}}})
		g.quiet = true
		l.a = g.prefill
		l.b = New(Config{Default: ModeOn, Router: g.router, Sender: g, Identify: g.identify, Peers: Peers{
			Changed: func() {},
			Meet: func(m kv.Meeting) {
				if m.Owner != "a" {
					t.Errorf("told to %q", m.Owner)
				}
				if !l.lost() {
					time.AfterFunc(20*time.Millisecond, func() { l.a.Met(m) })
				}
				if l.lost() { // and some of it twice, late
					time.AfterFunc(3*time.Second, func() { l.a.Met(m) })
				}
			},
		}})
		stop := make(chan struct{})
		go l.run(stop)          // owned by the bubble
		time.Sleep(time.Minute) // of idle time, which warming may use
		for i := range turns {
			c := &chat{rig: g, name: someText("c", 3) + string(rune('a'+i%26)) + string(rune('a'+i/26))}
			say := say{User: someText(c.name+"u", 100), Reasoning: someText(c.name+"t", 40), Reply: someText(c.name+"r", 6000), Output: 20}
			c.turn(say)
			time.Sleep(think)
			c.via = l.b
			o := c.turn(say)
			states[o.State]++
			time.Sleep(5 * time.Second)
			g.balanced("after a turn")
		}
		time.Sleep(40 * time.Minute)
		g.balanced("at the end")
		close(stop)
		g.close()
	})
	return states, g
}

// TestPeers_NextTurnElsewhereSettles: a next turn that comes to another proxy is that of
// the warm-up's owner too: known in time, its tokens used, its return learned.
func TestPeers_NextTurnElsewhereSettles(t *testing.T) {
	states, g := otherProxy(t, 0, 5*time.Second, 5)
	if states[stateWarmed] != 5 || g.counts()[outcomeUsed] != 5 {
		t.Errorf("turns %v, outcomes %v", states, g.counts())
	}
	if p := g.prefill.Debug().Scopes[0].Probability; p < 0.7 {
		t.Errorf("p(return) is %v after five of five came", p)
	}
}

// TestPeers_NextTurnElsewhereCancels a warm-up that is under way.
func TestPeers_NextTurnElsewhereCancels(t *testing.T) {
	states, g := otherProxy(t, 0, 400*time.Millisecond, 5)
	if states[outcomeCancelled] != 5 || g.counts()[outcomeCancelled+"/"+lateTurn] != 5 {
		t.Errorf("turns %v, outcomes %v", states, g.counts())
	}
	if kinds, _ := g.tokenCounters(); kinds[tokenLeft] == 0 {
		t.Errorf("nothing of what was done by then was found: %v", kinds)
	}
}

// TestPeers_LostMessagesAreHarmless: what is not heard, or twice, or late, changes neither
// turns nor sums: every warm-up is settled by the end.
func TestPeers_LostMessagesAreHarmless(t *testing.T) {
	for _, think := range []time.Duration{400 * time.Millisecond, 5 * time.Second} {
		states, g := otherProxy(t, 0.4, think, 40)
		if g.counts()[outcomeUnmeasured+"/"+blindPeer] == 0 || g.counts()[outcomeUsed] == 0 {
			t.Errorf("nothing or all was lost: %v", g.counts())
		}
		sum := 0.0
		for _, n := range g.counts() {
			sum += n
		}
		if sum != 40 {
			t.Errorf("%v outcomes of 40 turns: %v", sum, g.counts())
		}
		if _, open := g.tokenCounters(); open != 0 {
			t.Errorf("%v tokens are open", open)
		}
		t.Logf("think %v: %v, %v", think, states, g.counts())
	}
}

// TestPeers_OnlyWhatItStartsWith: a prompt of another conversation meets nothing, a peer
// that is gone is forgotten, and the newest warm-ups are told of where there are too many.
func TestPeers_OnlyWhatItStartsWith(t *testing.T) {
	told := 0
	p := still(t, Config{Peers: Peers{Changed: func() { told++ }, Meet: func(kv.Meeting) { t.Error("a stranger's prompt met a warm-up") }}})
	tokens := make([]uint32, 64)
	prompt := &kv.Prompt{Tokens: tokens, TokenCount: 64}
	tail := prompt.Chain(16)[2]
	p.Elsewhere("a", []kv.WarmUp{
		{ID: 1, BlockSize: 16, Blocks: 3, Tail: tail + 1}, {ID: 2, BlockSize: 16, Blocks: 2, Tail: tail}, {ID: 3, BlockSize: 16, Blocks: 9, Tail: tail},
		{ID: 4, BlockSize: 32, Blocks: 2, Tail: tail},
	})
	turn := arrive(t, p, hello, "")
	turn.meet(prompt)
	p.Elsewhere("a", []kv.WarmUp{{ID: 5, BlockSize: 16, Blocks: 3, Tail: tail}})
	p.Elsewhere("a", nil)
	turn.meet(prompt)
	if p.abroad.Load() != 0 || turn.State() != "" {
		t.Errorf("%d are known of a peer that is gone, state %q", p.abroad.Load(), turn.State())
	}
	for i := range kv.MaxWarmUps + 9 {
		c := &conversation{key: uint64(i), scope: scope{trigger: TriggerTurn}}
		p.mu.table.add(c)
		p.shareLocked(&job{c: c}, &verdict{blocks: i + 1, blockSize: 16, tail: 1})
	}
	all := p.Outstanding(nil)
	if len(all) != kv.MaxWarmUps || all[0].ID != 10 || told != kv.MaxWarmUps+9 {
		t.Errorf("%d are told, the first is %d, %d changes", len(all), all[0].ID, told)
	}
	p.Met(kv.Meeting{ID: 99999, Ended: true})
	turn.Finish(End{})
}

// TestPeers_OnlyItsOwnTenantAndModel: the next turn of a warm-up is one of the same tenant
// and model: to another, its prompt says nothing of what was warmed, and cancels nothing.
func TestPeers_OnlyItsOwnTenantAndModel(t *testing.T) {
	met := 0
	p := still(t, Config{Peers: Peers{Changed: func() {}, Meet: func(kv.Meeting) { met++ }}})
	prompt := &kv.Prompt{Tokens: make([]uint32, 64), TokenCount: 64}
	c := &conversation{scope: scope{"tenant", "m", TriggerTurn}}
	p.mu.table.add(c)
	p.shareLocked(&job{c: c}, &verdict{blocks: 3, blockSize: 16, tail: prompt.Chain(16)[2]})
	p.Elsewhere("a", p.Outstanding(nil))
	for _, id := range []identity{{model: "m"}, {model: "m", key: "other"}, {model: "n", key: "tenant"}} {
		turn := &Turn{p: p, id: id}
		if turn.meet(prompt); met != 0 || turn.State() != "" {
			t.Errorf("%v met the warm-up of tenant's m: %q", id, turn.State())
		}
	}
	(&Turn{p: p, id: identity{model: "m", key: "tenant"}}).meet(prompt)
	if met != 1 {
		t.Errorf("%d meetings, want 1", met)
	}
}

// TestPeers_HashesNothingOnAPeersWord: block sizes that only a peer knows of cost nothing,
// and a conversation that has gone on is not told of.
func TestPeers_HashesNothingOnAPeersWord(t *testing.T) {
	p := still(t, Config{Peers: Peers{Changed: func() {}, Meet: func(kv.Meeting) { t.Error("met") }}})
	prompt := &kv.Prompt{Tokens: make([]uint32, 4096), TokenCount: 4096}
	prompt.Chain(16)
	before := prompt.Chains.Bytes()
	var all []kv.WarmUp
	for i := range kv.MaxWarmUps {
		all = append(all, kv.WarmUp{ID: uint64(i + 1), BlockSize: i + 1, Blocks: 1, Tail: 1})
	}
	p.Elsewhere("hostile", all)
	(&Turn{p: p}).meet(prompt)
	if n := prompt.Chains.Bytes(); n != before {
		t.Errorf("%d bytes of hashes, %d before", n, before)
	}
	p.shareLocked(&job{c: &conversation{}}, &verdict{blocks: 1, blockSize: 16, tail: 1})
	if n := len(p.Outstanding(nil)); n != 0 {
		t.Errorf("%d conversations are told of that have gone on", n)
	}
}
