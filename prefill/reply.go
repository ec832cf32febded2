package prefill

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/warmroute/warmroute/internal/openai"
)

const maxCalls = 128 // tool calls of one reply

// reply gathers the assistant message of the first choice from the events of a stream
// or from a whole response. Text is kept as it was written between the quotes of its
// JSON strings: joined, the pieces are one JSON string with the same meaning.
type reply struct {
	content   []byte
	reasoning [2][]byte // by reasoningNames
	calls     []call
	ids       []uint32 // tokens of the reply, where the client asked the engine for them
	finish    string
	finished  bool
	odd       string // why the message cannot be echoed; "" where it can
	r         [2]openai.Reader
}

// reasoningNames are the fields that reasoning comes in; vLLM renamed its own.
var reasoningNames = [2]string{"reasoning_content", "reasoning"}

// call is one tool call. Strings are as written, without quotes.
type call struct {
	index    int64
	indexed  bool
	id, name []byte
	args     []byte
}

// size returns the bytes that the reply holds.
func (m *reply) size() int {
	n := len(m.content) + len(m.reasoning[0]) + len(m.reasoning[1]) + 4*len(m.ids)
	for i := range m.calls {
		n += len(m.calls[i].id) + len(m.calls[i].name) + len(m.calls[i].args) + 64
	}
	return n
}

// thought tells whether reasoning came in a field of its own.
func (m *reply) thought() bool { return len(m.reasoning[0])+len(m.reasoning[1]) > 0 }

// observe reads one event.
func (m *reply) observe(ev openai.Event) {
	switch {
	case ev.Oversize:
		m.spoil("an event was too long to read")
	case ev.Error:
		m.spoil("an error came in the stream")
	case string(ev.Data) != "[DONE]":
		m.read(ev.Data)
	}
}

func (m *reply) spoil(why string) {
	if m.odd == "" {
		m.odd = why
	}
}

// read walks one chunk, or a whole response.
func (m *reply) read(data []byte) {
	r := &m.r[0]
	r.Reset(data, openai.Span{Start: 0, End: len(data)})
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "choices":
			if r.Peek() != '[' {
				r.Skip()
				continue
			}
			r.Array()
			for r.Elem() {
				m.choice(data)
			}
		case "error":
			if !r.Null() {
				r.Skip()
				m.spoil("an error came in the stream")
			}
		default:
			r.Skip()
		}
	}
	if r.Err() != nil {
		m.spoil("an event could not be read")
	}
}

// choice reads one element of choices; those but the first choice's are passed over.
func (m *reply) choice(data []byte) {
	r := &m.r[0]
	if r.Peek() != '{' {
		r.Skip()
		return
	}
	first, finish := true, ""
	var delta, ids openai.Span
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "index":
			if r.Peek() == '0' {
				n, _ := r.Int()
				first = n == 0
				continue
			}
			r.Skip()
		case "delta", "message":
			delta = r.Skip()
		case "token_ids":
			ids = r.Skip()
		case "finish_reason":
			if r.Peek() == '"' {
				raw, _ := r.String()
				finish = string(raw)
				continue
			}
			r.Skip()
		default:
			r.Skip()
		}
	}
	if !first || r.Err() != nil {
		return
	}
	if delta.Present() && data[delta.Start] == '{' {
		m.message(data, delta)
	}
	if ids.Present() {
		m.tokens(data, ids)
	}
	if finish != "" && !m.finished {
		m.finish, m.finished = finish, true
	}
}

// tokens reads the ids of what an event brought.
func (m *reply) tokens(data []byte, at openai.Span) {
	r := &m.r[1]
	r.Reset(data, at)
	if r.Peek() != '[' {
		return
	}
	r.Array()
	for r.Elem() {
		n, ok := r.Int()
		if !ok || n < 0 || n > math.MaxUint32 {
			return // their number will not be that of the reply's tokens
		}
		m.ids = append(m.ids, uint32(n))
	}
}

// message reads a delta, or a whole message.
func (m *reply) message(data []byte, at openai.Span) {
	r := &m.r[1]
	r.Reset(data, at)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "content":
			switch r.Peek() {
			case '"':
				raw, _ := r.String()
				m.content = append(m.content, raw...)
			case 'n':
				r.Null()
			default:
				r.Skip()
				m.spoil("content is not a string")
			}
		case reasoningNames[0]:
			m.think(r, 0)
		case reasoningNames[1]:
			m.think(r, 1)
		case "tool_calls":
			if r.Peek() != '[' {
				r.Skip()
				continue
			}
			r.Array()
			for r.Elem() {
				m.call(r)
			}
		case "function_call", "refusal", "audio":
			name := string(key)
			if span := r.Skip(); span.Present() && filled(span.Of(data)) {
				m.spoil("it holds a " + name)
			}
		default:
			r.Skip()
		}
	}
	if r.Err() != nil {
		m.spoil("a message could not be read")
	}
}

// filled tells whether a value says anything.
func filled(v []byte) bool {
	switch string(v) {
	case "null", `""`, "{}", "[]":
		return false
	}
	return true
}

func (m *reply) think(r *openai.Reader, name int) {
	if r.Peek() != '"' {
		r.Skip()
		return
	}
	raw, _ := r.String()
	m.reasoning[name] = append(m.reasoning[name], raw...)
}

// call reads one tool call, or a piece of one. Engines differ in what they say of which
// call a piece belongs to: its id, if it has one, then its index, then its place.
func (m *reply) call(r *openai.Reader) {
	if r.Peek() != '{' {
		r.Skip()
		return
	}
	var piece call
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "index":
			if r.Peek() == '0' {
				piece.index, piece.indexed = r.Int()
				continue
			}
			r.Skip()
		case "id":
			piece.id = text(r)
		case "type":
			if kind := text(r); len(kind) > 0 && string(kind) != "function" {
				m.spoil("a tool call is not a function's")
			}
		case "function":
			if r.Peek() != '{' {
				r.Skip()
				continue
			}
			r.Object()
			for key, ok := r.Key(); ok; key, ok = r.Key() {
				switch string(key) {
				case "name":
					piece.name = text(r)
				case "arguments":
					if k := r.Peek(); k != '"' && k != 'n' {
						m.spoil("arguments of a tool call are not a string")
					}
					piece.args = text(r)
				default:
					r.Skip()
				}
			}
		default:
			r.Skip()
		}
	}
	c := m.find(&piece)
	if c == nil {
		if len(m.calls) == maxCalls {
			m.spoil("too many tool calls")
			return
		}
		m.calls = append(m.calls, call{index: piece.index, indexed: piece.indexed})
		c = &m.calls[len(m.calls)-1]
	}
	if len(c.id) == 0 {
		c.id = bytes.Clone(piece.id)
	}
	if len(c.name) == 0 {
		c.name = bytes.Clone(piece.name)
	}
	c.args = append(c.args, piece.args...)
}

// find returns the call that a piece continues, nil where it opens one.
func (m *reply) find(piece *call) *call {
	if len(piece.id) > 0 {
		for i := range m.calls {
			if bytes.Equal(m.calls[i].id, piece.id) {
				return &m.calls[i]
			}
		}
	}
	for i := len(m.calls) - 1; i >= 0; i-- {
		c := &m.calls[i]
		if piece.indexed && c.indexed && c.index != piece.index {
			continue
		}
		if len(piece.id) > 0 && len(c.id) > 0 {
			return nil // another id: another call, whatever its index says
		}
		if !piece.indexed && len(piece.id) > 0 {
			return nil
		}
		return c
	}
	return nil
}

// text reads a string and returns it as written; nil for anything else.
func text(r *openai.Reader) []byte {
	if r.Peek() != '"' {
		r.Skip()
		return nil
	}
	raw, _ := r.String()
	return raw
}

// check tells why no warm-up can be built from the reply: a word for the counter, and
// "" where one can.
func (m *reply) check() (reason string, trigger Trigger) {
	switch m.finish {
	case "stop", "tool_calls":
	case "length":
		// A cut answer is history like any other. Benches that ask for answers of an exact
		// length (ignore_eos) never end otherwise.
		if len(m.calls) > 0 || len(m.content) == 0 {
			return skipFinish, ""
		}
	default:
		return skipFinish, ""
	}
	if m.odd != "" {
		return skipShape, ""
	}
	trigger = TriggerTurn
	if len(m.calls) > 0 {
		trigger = TriggerTools
	} else if m.finish == "tool_calls" || len(m.content) == 0 {
		return skipShape, ""
	}
	for i := range m.calls {
		c := &m.calls[i]
		args := openai.Unescape(nil, c.args)
		if len(c.id) == 0 || len(c.name) == 0 || len(args) > 0 && !isObject(args) {
			return skipShape, "" // cut off or mixed up: the engine would refuse it, or worse
		}
	}
	return "", trigger
}

func isObject(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 0 && b[0] == '{' && json.Valid(b)
}
