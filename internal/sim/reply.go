package sim

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// channel is the field of a response in which a token's text appears.
type channel uint8

const (
	chSilent    channel = iota // markers: counted, not shown
	chReasoning                // reasoning, reasoning_content
	chContent
	chCall // tool_calls[0].function
)

// Words of replies, four bytes a token (a space before all but the first), so a reply
// that a client echoes turns into the very tokens that were generated.
var (
	openings = []string{"Sure", "Well", "Yes,", "Here", "Okay", "Good", "This", "Then"}
	thoughts = []string{"Hmm,", "Wait", "Let,", "Look", "So, ", "Now,"}
	words    = strings.Fields("the cat sat and saw how far its old red box was set for you too one few can all day may ask why not yet get put run two six ten")
)

// reply is everything that one sequence will generate, known before it is generated.
type reply struct {
	tokens   []uint32
	channels []channel
	finish   string // finish_reason
	callID   string
	callName string
	callArgs string

	vocabulary vocabulary
}

// replyPlan says what kind of reply to write.
type replyPlan struct {
	seed      uint64 // of the server and the choice
	max       int    // max_tokens
	min       int    // min_tokens
	natural   int    // typical length of the visible answer in tokens
	reasoning int    // typical length of the reasoning; 0 for none
	ignoreEOS bool
	call      string // name of the tool to call, "" for none

	vocabulary vocabulary
}

// write makes the reply to a prompt, the same one each time.
func (p replyPlan) write(prompt []uint32) *reply {
	h := xxh3.HashSeed(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(prompt))), 4*len(prompt)), p.seed)
	r := rand.New(rand.NewPCG(h, p.seed))
	around := func(n int) int { return n/2 + r.IntN(n+1) }
	out := &reply{vocabulary: p.vocabulary}
	if p.reasoning > 0 {
		out.add(chSilent, p.vocabulary.openThink(prompt)...)
		out.prose(r, chReasoning, thoughts, max(around(p.reasoning), 1))
		out.add(chSilent, p.vocabulary.mark(tokThinkEnd)...)
	}
	if p.call != "" {
		out.callID = "call_" + hex16(r.Uint64())
		out.callName = p.call
		out.callArgs = `{"query":"` + words[r.IntN(len(words))] + `"}`
		out.add(chSilent, p.vocabulary.mark(tokCall)...)
		out.add(chCall, p.vocabulary.words(callText(out.callName, out.callArgs))...)
		out.add(chSilent, p.vocabulary.mark(tokCallEnd)...)
		out.finish = "tool_calls"
	} else {
		out.prose(r, chContent, openings, max(around(p.natural), 1))
		out.finish = "stop"
	}
	switch {
	case p.call != "":
	case p.ignoreEOS:
		out.more(r, p.max-len(out.tokens))
		out.finish = "length"
	default:
		out.more(r, p.min-1-len(out.tokens))
	}
	if out.finish != "length" {
		out.add(chSilent, p.vocabulary.end())
	}
	if len(out.tokens) > p.max {
		out.tokens, out.channels, out.finish = out.tokens[:p.max], out.channels[:p.max], "length"
	}
	return out
}

func (o *reply) add(c channel, tokens ...uint32) {
	for _, t := range tokens {
		o.tokens = append(o.tokens, t)
		o.channels = append(o.channels, c)
	}
}

func (o *reply) prose(r *rand.Rand, c channel, first []string, n int) {
	o.add(c, o.vocabulary.words(first[r.IntN(len(first))])...)
	o.fill(r, c, n-1)
}

// more appends n further tokens of content.
func (o *reply) more(r *rand.Rand, n int) { o.fill(r, chContent, n) }

// fill appends words of n tokens: one each in the toy vocabulary, about one in another.
func (o *reply) fill(r *rand.Rand, c channel, n int) {
	for end := len(o.tokens) + n; len(o.tokens) < end; {
		o.add(c, o.vocabulary.words(" "+words[r.IntN(len(words))])...)
	}
}

// text returns the text of the tokens from to to in channel c.
func (o *reply) text(c channel, from, to int) string {
	var shown []uint32
	for i := from; i < to; i++ {
		if o.channels[i] == c {
			shown = append(shown, o.tokens[i])
		}
	}
	return o.vocabulary.decode(shown)
}

func hex16(x uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[i] = digits[x>>(60-4*i)&15]
	}
	return string(b[:])
}

// forcedTool returns the name of the function that tool_choice demands: a named one,
// or the first tool for "required".
func forcedTool(choice json.RawMessage, tools []json.RawMessage) string {
	var named struct {
		Function struct{ Name string }
	}
	var mode string
	if json.Unmarshal(choice, &mode) == nil && mode == "required" && len(tools) > 0 {
		_ = json.Unmarshal(tools[0], &named)
		return named.Function.Name
	}
	if len(choice) > 0 && choice[0] == '{' {
		_ = json.Unmarshal(choice, &named)
	}
	return named.Function.Name
}
