package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// plan is everything a run will say and when, except the salt. Conversations are drawn
// anew by whoever plays them: a large plan does not stay in memory.
type plan struct {
	cfg  *Config
	hash string // over all conversations
}

type userPlan struct {
	start  time.Duration
	system string
	turns  []turnPlan
}

type turnPlan struct {
	text  string
	think time.Duration // before this turn; 0 for the first
	tools []string      // what the tool answers to each call
}

// words are the usual ones of placeholder text, about 1.25 tokens each.
var words = strings.Fields(`lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt
ut labore et dolore magna aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea
commodo consequat duis aute irure in reprehenderit voluptate velit esse cillum fugiat nulla pariatur excepteur sint
occaecat cupidatat non proident sunt culpa qui officia deserunt mollit anim id est laborum`)

// newPlan hashes the plan.
func newPlan(c *Config) *plan {
	p := &plan{cfg: c}
	h := sha256.New()
	fmt.Fprintf(h, "users=%d turns=%d out=%d eos=%t echo=%t extra=%s\n", c.Users, c.Turns, c.MaxCompletionTokens, c.IgnoreEOS, c.EchoReasoning, c.ExtraBody)
	if c.ToolSteps > 0 {
		fmt.Fprintf(h, "tool-steps=%d tool-delay=%d\n", c.ToolSteps, c.ToolDelay)
	}
	number := func(d time.Duration) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(d))
		h.Write(b[:])
	}
	for i := range c.Users {
		u := p.user(i)
		number(u.start)
		for _, t := range u.turns {
			number(t.think)
			h.Write([]byte(t.text))
			for _, s := range t.tools {
				h.Write([]byte(s))
			}
		}
	}
	p.hash = hex.EncodeToString(h.Sum(nil)[:8])
	return p
}

// user draws one conversation. Its generator is seeded by its number, so the order in
// which conversations are drawn changes nothing.
func (p *plan) user(i int) userPlan {
	c := p.cfg
	id := fnv.New64a()
	fmt.Fprintf(id, "conversation %d", i)
	r := rand.New(rand.NewPCG(c.Seed, id.Sum64()))
	u := userPlan{
		system: fmt.Sprintf("You are a helpful assistant. You are assisting user %d. Answer questions thoroughly and accurately.", i),
		start:  time.Duration(float64(c.Stagger) * float64(i) / float64(c.Users)),
	}
	for turn := range c.Turns {
		t := turnPlan{text: prose(r, c.UserTokens)}
		// Drawn for every turn, so that a longer conversation starts like a shorter one.
		if x := r.Float64(); turn > 0 {
			t.think = time.Duration(-math.Log1p(-x) * float64(c.MeanDelay))
		}
		for range c.ToolSteps {
			t.tools = append(t.tools, prose(r, c.UserTokens))
		}
		u.turns = append(u.turns, t)
	}
	return u
}

// prose writes about the given number of tokens.
func prose(r *rand.Rand, tokens int) string {
	var b strings.Builder
	for i := range max(int(0.8*float64(tokens)), 1) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.String()
}

// salted opens a system line. The salt comes first and has one length, so the first
// block of a prompt differs between salts and the number of tokens hardly does.
func salted(salt, system string) string { return "[" + salt + "] " + system }

// freshSalt draws a salt that no run of the same seed has used.
func freshSalt() string { return fmt.Sprintf("%08x", rand.Uint32()) }

// blockSalt is the salt of one block of an A/B run.
func blockSalt(salt string, pair int, treatment bool) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s pair %d treatment %t", salt, pair, treatment))
	return hex.EncodeToString(sum[:4])
}
