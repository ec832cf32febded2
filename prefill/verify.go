package prefill

import (
	"hash/maphash"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// The places at which a next prompt can leave what was warmed.
const (
	whereSystem    = "system"    // tools or template arguments changed
	whereHistory   = "history"   // before the reply, though its messages are the same
	whereReply     = "reply"     // the text of the reply
	whereReasoning = "reasoning" // the client echoes it, or does not, against expectation
	whereTool      = "tool"      // a tool call
	whereNext      = "next"      // another kind of message follows than was assumed
	whereCut       = "cut"       // the last tokens, where the next message's text begins
	whereBlocks    = "blocks"    // tokens were not kept or not known: whole blocks differ
)

// cutTokens is how near its end a prefix may differ for the cut to be at fault.
const cutTokens = 4

// maxMarks bounds what is kept of warm prefixes until their next turns come: 64 MiB are
// 32 Mi tokens. Beyond it whole blocks are compared.
const maxMarks = 64 << 20

// expectation is what a warm-up takes for granted of the next turn. It holds no text and
// no token ids.
type expectation struct {
	sum    uint64   // of the warm prefix's token ids
	marks  []uint16 // of each of them, keyed: one in 65,536 differing tokens goes unseen
	prefix int      // tokens; 0 where they are not known
	before int      // of those, that the finished turn's prompt has too; -1: not known
	frame  uint64   // of what stands around the messages
	echo   message
	calls  bool // tools answer next

	texts int // whole text blocks before the stub, where tokens are not known
	text  kv.SequenceHash
}

// size is what an expectation counts against maxMarks, in bytes.
func (x *expectation) size() int64 {
	if x == nil {
		return 0
	}
	return int64(2 * cap(x.marks))
}

// expect notes what the prompt after a turn with this body and this reply should start
// with.
func (p *Prefiller) expect(w *plan, body []byte, e *echo, m *reply) *expectation {
	var v openai.Request
	if openai.ParseRequest(openai.Chat, body, &v) != nil {
		return nil
	}
	x := &expectation{before: -1, frame: frameOf(p.seed, body, &v), calls: len(m.calls) > 0}
	if said, err := e.assistant(nil, m); err == nil {
		x.echo = messageOf(p.seed, said, openai.Span{Start: 1, End: len(said)})
	}
	if w.texts > 0 {
		x.texts, x.text = w.texts, w.prompt.Text[w.texts-1]
	}
	if !w.exact || w.prefix == 0 {
		return x
	}
	ids := w.prompt.Tokens[:w.prefix]
	x.prefix, x.sum = len(ids), sumOf(p.seed, ids)
	if w.known {
		x.before = w.shared
	}
	key := x.key(p.seed)
	x.marks = make([]uint16, len(ids))
	for i, id := range ids {
		x.marks[i] = markOf(key, id)
	}
	return x
}

func (x *expectation) key(seed maphash.Seed) uint64 { return maphash.Comparable(seed, x.sum) }

// markOf is the top of a product: ids that are near one another have marks far apart.
func markOf(key uint64, id uint32) uint16 {
	return uint16((uint64(id) ^ key) * 0x9e3779b97f4a7c15 >> 48)
}

func sumOf(seed maphash.Seed, ids []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	var b [4 * 256]byte
	for len(ids) > 0 {
		n := min(len(ids), len(b)/4)
		for i, id := range ids[:n] {
			b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(id), byte(id>>8), byte(id>>16), byte(id>>24)
		}
		h.Write(b[:4*n])
		ids = ids[n:]
	}
	return h.Sum64()
}

// truth of a warm prefix: whether the next prompt starts with it, else where it leaves it.
type truth struct {
	known bool
	true  bool
	where string
	at    int // first token that differs; -1: not known
}

// compare compares a warm prefix with the prompt that came. came says what differs in the
// messages, "" for nothing.
func (p *Prefiller) compare(c *conversation, prompt *kv.Prompt, came string) truth {
	x := c.expect
	switch {
	case x == nil || prompt == nil:
		return truth{}
	case x.prefix > 0 && whollyExact(prompt):
		ids := prompt.Tokens
		if len(ids) >= x.prefix && sumOf(p.seed, ids[:x.prefix]) == x.sum {
			return truth{known: true, true: true, at: -1}
		}
		if len(x.marks) == 0 {
			return compareBlocks(c, prompt)
		}
		key, at := x.key(p.seed), 0
		for at < len(ids) && at < x.prefix && markOf(key, ids[at]) == x.marks[at] {
			at++
		}
		return truth{known: true, where: x.where(at, came), at: at}
	}
	return compareBlocks(c, prompt)
}

// verified counts whether the prompt that came starts with what was warmed for it.
func (p *Prefiller) verified(c *conversation, prompt *kv.Prompt, came string) {
	r := p.compare(c, prompt, came)
	switch {
	case !r.known:
	case r.true:
		p.metrics.prefixes.WithLabelValues("true", r.where).Inc()
	default:
		p.metrics.prefixes.WithLabelValues("false", r.where).Inc()
		p.mu.Lock()
		p.recordFalseLocked(c, &r)
		p.mu.Unlock()
	}
}

// compareBlocks compares whole blocks, of tokens or of text.
func compareBlocks(c *conversation, prompt *kv.Prompt) truth {
	x, w := c.expect, &c.warm
	switch {
	case w.blocks > 0 && prompt.Exact():
		return truth{known: true, true: starts(prompt, w), where: whereBlocks, at: -1}
	case x.texts > 0 && len(prompt.Text) > 0:
		ok := len(prompt.Text) >= x.texts && prompt.Text[x.texts-1] == x.text
		return truth{known: true, true: ok, where: whereBlocks, at: -1}
	}
	return truth{}
}

// where names the part of the prompt in which token at stands.
func (x *expectation) where(at int, came string) string {
	switch {
	case came == whereSystem || came != "" && (x.before < 0 || at >= x.before):
		return came
	case x.before >= 0 && at < x.before:
		return whereHistory
	case at >= x.prefix-cutTokens:
		return whereCut
	case x.before < 0:
		return whereHistory
	}
	return whereReply
}

// differs tells what a request that continues a conversation has other than assumed, ""
// for nothing. n is the number of messages of the finished turn.
func (x *expectation) differs(body []byte, v *openai.Request, seed maphash.Seed, n int) string {
	if x == nil || len(v.Messages) < n+2 {
		return ""
	}
	if frameOf(seed, body, v) != x.frame {
		return whereSystem
	}
	if d := x.echo.differs(messageOf(seed, body, v.Messages[n].Span)); d != "" {
		return d
	}
	if (v.Messages[n+1].Role == "tool") != x.calls {
		return whereNext
	}
	return ""
}

// frameOf hashes what shapes a prompt beside its messages.
func frameOf(seed maphash.Seed, body []byte, v *openai.Request) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	t := &v.Template
	for _, s := range [...]openai.Span{t.Tools, t.Functions, t.ChatTemplate, t.Kwargs, t.ReasoningEffort, t.Reasoning, t.Thinking, t.EnableThinking, t.Documents} {
		writeLength(&h, len(s.Of(body)))
		h.Write(s.Of(body))
	}
	return h.Sum64()
}

// message is what an assistant's message says, without its text: how it is written does
// not count, what is absent is 0.
type message struct {
	content, reasoning, calls uint64
	inline                    bool // reasoning stands in the content
}

func messageOf(seed maphash.Seed, body []byte, at openai.Span) (m message) {
	var r openai.Reader
	r.Reset(body, at)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		var to *uint64
		switch string(key) {
		case "content":
			to = &m.content
		case reasoningNames[0], reasoningNames[1]:
			to = &m.reasoning
		case "tool_calls":
			to = &m.calls
		}
		raw := r.Skip().Of(body)
		switch {
		case to == nil || !filled(raw):
		case to == &m.calls:
			*to = callsSum(seed, raw)
		default:
			said := partsText(raw)
			*to = maphash.Bytes(seed, said)
			if to == &m.content {
				_, m.inline, _ = withoutReasoning(said)
			}
		}
	}
	return m
}

// partsText returns the text of a string, or that of a list of parts in one.
func partsText(raw []byte) (out []byte) {
	var r openai.Reader
	r.Reset(raw, openai.Span{End: len(raw)})
	switch r.Peek() {
	case '"':
		return openai.Unescape(nil, text(&r))
	case '[':
	default:
		return raw
	}
	r.Array()
	for r.Elem() {
		if r.Peek() != '{' {
			r.Skip()
			continue
		}
		r.Object()
		for key, ok := r.Key(); ok; key, ok = r.Key() {
			if string(key) == "text" {
				out = openai.Unescape(out, text(&r))
				continue
			}
			r.Skip()
		}
	}
	return out
}

// callsSum hashes what tool calls say: id, name and arguments of each.
func callsSum(seed maphash.Seed, raw []byte) uint64 {
	m := reply{}
	r := &m.r[1]
	r.Reset(raw, openai.Span{End: len(raw)})
	if r.Peek() == '[' {
		r.Array()
		for r.Elem() {
			m.call(r)
		}
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for i := range m.calls {
		c := &m.calls[i]
		for _, part := range [...][]byte{c.id, c.name, c.args} {
			b := openai.Unescape(nil, part)
			writeLength(&h, len(b))
			h.Write(b)
		}
	}
	return h.Sum64()
}

func (m message) differs(came message) string {
	switch {
	case m.reasoning != came.reasoning || m.inline != came.inline:
		return whereReasoning
	case m.calls != came.calls:
		return whereTool
	case m.content != came.content:
		return whereReply
	}
	return ""
}
