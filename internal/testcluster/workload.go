package testcluster

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Turn is one request of a conversation.
type Turn struct {
	InputTokens  int           // tokens this turn adds to the history before it is sent
	OutputTokens int           // tokens the engine generates: max_tokens with ignore_eos
	Think        time.Duration // from the end of the turn before to the send of this one
}

// Conversation is a list of turns over one growing history. The prompt of turn i is
// Prefix, then for every turn up to i its input, with the output of each turn before
// i behind that turn's input.
type Conversation struct {
	ID      uint64        // names the conversation's own tokens: equal ids, equal tokens
	Arrival time.Duration // open loop only: when the first turn is sent
	Prefix  []uint32      // shared with other conversations; never changed
	Turns   []Turn
	// Input, when set, appends the input of turn i to the history instead of
	// InputTokens tokens of the conversation's own.
	Input func(history []uint32, turn int) []uint32
}

// Workload is what the clients play, in this order.
type Workload struct {
	Name          string
	Conversations []Conversation
}

// tokens returns the length of the whole history of c.
func (c *Conversation) tokens() int {
	n := len(c.Prefix)
	for _, t := range c.Turns {
		n += t.InputTokens + t.OutputTokens
	}
	return n
}

// vocabulary is the number of distinct token ids that workloads use.
const vocabulary = 128_000

// token is the i-th token of stream: a pure function, so that equal streams are equal
// prefixes and nothing has to be stored.
func token(stream uint64, i int) uint32 {
	x := stream*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return uint32(x % vocabulary)
}

// appendTokens appends n tokens of stream.
func appendTokens(dst []uint32, stream uint64, n int) []uint32 {
	for i := range n {
		dst = append(dst, token(stream, i))
	}
	return dst
}

// The streams of one conversation: the input and the output of each turn.
func inputStream(conversation uint64, turn int) uint64  { return conversation<<16 | uint64(turn)<<1 }
func outputStream(conversation uint64, turn int) uint64 { return inputStream(conversation, turn) | 1 }

// rng returns the generator of one purpose of one seed.
func rng(seed, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }

// Seed returns the multi-turn workload of the project's benchmark: conversations of
// twelve turns over one shared prefix of 35,000 tokens, 3,000 new tokens and 1,000
// generated ones a turn, no think time. The ceiling of reuse is 95.0 %.
func Seed(conversations int, seed uint64) Workload {
	return chats("seed", conversations, 12, 35_000, Turn{InputTokens: 3_000, OutputTokens: 1_000}, seed)
}

// chats returns conversations of equal turns over one shared prefix.
func chats(name string, conversations, turns, prefixTokens int, turn Turn, seed uint64) Workload {
	w := Workload{Name: name}
	prefix := appendTokens(make([]uint32, 0, prefixTokens), seed<<32|0xfeed, prefixTokens)
	for i := range conversations {
		w.Conversations = append(w.Conversations, Conversation{
			ID: seed<<16 | uint64(i), Prefix: prefix, Turns: slices.Repeat([]Turn{turn}, turns),
		})
	}
	return w
}

// Siblings returns n single-turn requests that share one prefix, sent every apart
// from each other in an open loop, each with tail own tokens: FC-61's hot prefix, or
// a burst of sub-agents with one new prefix.
func Siblings(n, prefixTokens, tail, output int, every time.Duration, seed uint64) Workload {
	prefix := appendTokens(make([]uint32, 0, prefixTokens), seed<<32|0x51b, prefixTokens)
	w := Workload{Name: fmt.Sprintf("siblings of %d tokens", prefixTokens)}
	for i := range n {
		w.Conversations = append(w.Conversations, Conversation{
			ID: seed<<16 | uint64(i), Arrival: time.Duration(i) * every, Prefix: prefix,
			Turns: []Turn{{InputTokens: tail, OutputTokens: output}},
		})
	}
	return w
}

// quantiles is a distribution given by its value at ascending probabilities. Between
// two of them it is linear in the logarithm (values below 1 count as 1).
type quantiles []struct{ p, v float64 }

// at returns the value at probability p.
func (q quantiles) at(p float64) float64 {
	for i := 1; i < len(q); i++ {
		if p <= q[i].p {
			lo, hi := math.Log(max(q[i-1].v, 1)), math.Log(max(q[i].v, 1))
			return math.Exp(lo + (hi-lo)*(p-q[i-1].p)/(q[i].p-q[i-1].p))
		}
	}
	return q[len(q)-1].v
}

func (q quantiles) draw(r *rand.Rand) float64 { return q.at(r.Float64()) }

// Facts about 1,883 requests of 47 public Claude Code traces (callanjfox/kv-cache-tester,
// Apache-2.0), from which Agents draws. Thinking stops at the p90 of a tool step: a
// session that waits for a person for an hour is not a live one.
var (
	agentHeadTokens  = quantiles{{0, 10_600}, {.1, 11_300}, {.5, 14_700}, {.9, 16_000}, {1, 18_800}}
	agentFirstTokens = quantiles{{0, 142}, {.1, 627}, {.25, 3_362}, {.5, 10_739}, {1, 24_000}}
	agentStepTokens  = quantiles{{0, 8}, {.1, 13}, {.25, 110}, {.5, 377}, {.75, 997}, {.9, 3_104}, {.95, 6_331}, {1, 12_000}}
	agentOutput      = quantiles{{0, 58}, {.1, 103}, {.25, 139}, {.5, 216}, {.75, 428}, {.9, 892}, {.95, 1_612}, {1, 4_013}}
	agentThinkMillis = quantiles{{0, 1_500}, {.05, 3_000}, {.1, 4_000}, {.25, 6_000}, {.5, 10_000}, {.75, 27_000}, {.9, 106_000}, {1, 110_000}}
	agentSteps       = quantiles{{0, 8}, {.25, 20}, {.5, 28}, {.75, 48}, {1, 80}}
)

// agentContextTokens is where a session of Agents ends: real ones compact or stop.
const agentContextTokens = 64_000

// Agents returns sessions of a coding agent: one of three system-and-tools heads, a
// first task, then a tool loop whose context grows to 30,000 to 64,000 tokens, with
// seconds between the steps. 72 of them at once fill about nine tenths of 8 × 400,000
// tokens of KV cache with live contexts.
func Agents(sessions int, seed uint64) Workload {
	w := Workload{Name: "agents"}
	r := rng(seed, 0xa9e7)
	var heads [3][]uint32
	for i := range heads {
		n := int(agentHeadTokens.draw(r))
		heads[i] = appendTokens(make([]uint32, 0, n), seed<<32|0xead<<8|uint64(i), n)
	}
	for i := range sessions {
		c := Conversation{ID: seed<<16 | uint64(i), Prefix: heads[r.IntN(len(heads))]}
		context := len(c.Prefix)
		for t := range int(agentSteps.draw(r)) {
			turn := Turn{InputTokens: int(agentStepTokens.draw(r)), OutputTokens: int(agentOutput.draw(r))}
			if t == 0 {
				turn.InputTokens = int(agentFirstTokens.draw(r))
			} else {
				turn.Think = time.Duration(agentThinkMillis.draw(r)) * time.Millisecond
			}
			if context += turn.InputTokens + turn.OutputTokens; context > agentContextTokens && t > 0 {
				break
			}
			c.Turns = append(c.Turns, turn)
		}
		w.Conversations = append(w.Conversations, c)
	}
	return w
}
