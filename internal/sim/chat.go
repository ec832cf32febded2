package sim

import (
	"encoding/json"
	"strconv"
)

// chatAPI is /v1/chat/completions.
type chatAPI struct{}

func (chatAPI) defaultMax() int { return 0 }

func (chatAPI) prompts(s *Server, q *genRequest) ([]rendered, *apiError) {
	p, e := s.chatPrompt(q)
	return []rendered{p}, e
}

// object is a JSON object whose keys come out sorted.
type object = map[string]any

func (a *answer) sglang() bool { return a.server.cfg.Like == SGLang }

func (a *answer) chatID() string { return "chatcmpl-" + a.id }

// reasoningField is the name of reasoning in messages and deltas.
func (a *answer) reasoningField() string {
	if a.sglang() {
		return "reasoning_content"
	}
	return "reasoning"
}

func (chatAPI) full(a *answer) any {
	var choices []object
	for i, c := range a.gen.choices {
		r, n := c.reply, c.progress().generated
		message := object{"role": "assistant", "content": nil, "tool_calls": []object{}, a.reasoningField(): nil}
		if text := r.text(chContent, 0, n); text != "" || r.callName == "" {
			message["content"] = text
		}
		if text := r.text(chReasoning, 0, n); text != "" {
			message[a.reasoningField()] = text
		}
		if r.callName != "" {
			message["tool_calls"] = []object{{"id": r.callID, "type": "function", "index": 0,
				"function": object{"name": r.callName, "arguments": r.callDelta(0, n)}}}
		} else if a.sglang() {
			message["tool_calls"] = nil
		}
		choice := object{"index": i, "message": message, "logprobs": nil, "finish_reason": r.finish}
		a.finishFields(choice, r)
		if a.req.ReturnTokenIDs && !a.sglang() {
			choice["token_ids"] = r.tokens[:n]
		}
		choices = append(choices, choice)
	}
	out := object{"id": a.chatID(), "object": "chat.completion", "created": a.created, "model": a.model,
		"choices": choices, "usage": json.RawMessage(a.appendUsage(nil))}
	if a.req.ReturnTokenIDs && !a.sglang() {
		out["prompt_token_ids"] = a.gen.choices[0].seq.Tokens
	}
	return out
}

// finishFields adds what the engine says about why it stopped.
func (a *answer) finishFields(choice object, r *reply) {
	key := "stop_reason"
	if a.sglang() {
		key = "matched_stop"
	}
	choice[key] = nil
	if a.sglang() && r.finish != "length" {
		choice[key] = uint32(tokEnd)
	}
}

func (f chatAPI) chunks(dst []byte, a *answer, st *stream, i int, p progress) []byte {
	c := a.gen.choices[i]
	if c.finished {
		return dst
	}
	r := c.reply
	if !c.opened {
		c.opened = true
		delta := `{"role":"assistant","content":""}`
		if a.sglang() {
			delta = `{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null}`
		}
		dst = f.event(dst, a, i, delta, "", nil, i == 0)
	}
	for c.sent < p.generated {
		from, to := c.sent, c.sent
		for to < p.generated && r.channels[to] == chSilent {
			to++
		}
		if to == p.generated {
			break // markers go with the event that follows them
		}
		ch := r.channels[to]
		for to < p.generated && r.channels[to] == ch {
			to++
		}
		finish := ""
		if p.done && to == p.generated && !a.sglang() {
			finish, c.finished = r.finish, true
		}
		if ch == chCall {
			if !c.named {
				c.named = true
				dst = f.event(dst, a, i, f.callOpen(r), "", nil, false)
				st.deltas++
			}
			if args := r.callDelta(from, to); args != "" || finish != "" {
				dst = f.event(dst, a, i, `{"tool_calls":[{"index":0,"function":{"arguments":`+quote(args)+`}}]}`, finish, r.tokens[from:to], false)
				st.deltas++
			}
		} else {
			dst = f.event(dst, a, i, f.delta(a, ch, r.text(ch, from, to)), finish, r.tokens[from:to], false)
			st.deltas++
		}
		c.sent = to
	}
	if p.done && !c.finished {
		c.finished = true
		delta := `{"content":""}`
		if a.sglang() {
			delta = `{"role":null,"content":null,"reasoning_content":null,"tool_calls":null}`
		}
		dst = f.event(dst, a, i, delta, r.finish, r.tokens[c.sent:p.generated], false)
	}
	if c.finished {
		a.finals++
	}
	return dst
}

func (chatAPI) delta(a *answer, ch channel, text string) string {
	switch {
	case !a.sglang() && ch == chContent:
		return `{"content":` + quote(text) + `}`
	case !a.sglang():
		return `{"reasoning":` + quote(text) + `}`
	case ch == chContent:
		return `{"role":null,"content":` + quote(text) + `,"reasoning_content":null,"tool_calls":null}`
	}
	return `{"role":null,"content":null,"reasoning_content":` + quote(text) + `,"tool_calls":null}`
}

func (chatAPI) callOpen(r *reply) string {
	return `{"tool_calls":[{"id":` + quote(r.callID) + `,"type":"function","index":0,"function":{"name":` + quote(r.callName) + `,"arguments":""}}]}`
}

// event appends one SSE event of choice i.
func (chatAPI) event(dst []byte, a *answer, i int, delta, finish string, ids []uint32, first bool) []byte {
	dst = a.head(dst, a.chatID(), "chat.completion.chunk")
	dst = append(dst, `"choices":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	dst = append(dst, `,"delta":`...)
	dst = append(dst, delta...)
	dst = append(dst, `,"logprobs":null,"finish_reason":`...)
	dst = appendFinish(dst, finish)
	if finish != "" {
		dst = a.stopField(dst, finish)
	}
	dst = a.tokenIDs(dst, ids)
	dst = append(dst, '}', ']')
	if first && a.req.ReturnTokenIDs && !a.sglang() {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, a.gen.choices[0].seq.Tokens)
	}
	return a.tail(dst)
}

func (chatAPI) usageChunk(dst []byte, a *answer) []byte {
	dst = a.head(dst, a.chatID(), "chat.completion.chunk")
	dst = append(dst, `"choices":[],"usage":`...)
	dst = a.appendUsage(dst)
	return append(dst, "}\n\n"...)
}

// callDelta returns the part of the call's arguments that the tokens from to to spell.
func (r *reply) callDelta(from, to int) string {
	var b string
	lead := 0 // bytes of the call before from
	for i := 0; i < to; i++ {
		if r.channels[i] != chCall {
			continue
		}
		text := r.vocabulary.decode(r.tokens[i : i+1])
		if i < from {
			lead += len(text)
			continue
		}
		b += text
	}
	prefix := len(callText(r.callName, "")) - 1
	lo, hi := max(prefix-lead, 0), min(prefix+len(r.callArgs)-lead, len(b))
	if lo >= hi {
		return ""
	}
	return b[lo:hi]
}
