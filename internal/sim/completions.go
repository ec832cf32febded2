package sim

import (
	"encoding/json"
	"strconv"
)

// completionAPI is /v1/completions.
type completionAPI struct{}

func (completionAPI) defaultMax() int { return 16 }

func (completionAPI) prompts(s *Server, q *genRequest) ([]rendered, *apiError) {
	return s.prompts(q.Prompt)
}

func (a *answer) completionID() string {
	if a.sglang() {
		return a.id
	}
	return "cmpl-" + a.id
}

// text returns what the tokens from to to show: reasoning has no field of its own in
// a completion, and markers are skipped.
func (completionAPI) text(r *reply, from, to int) string {
	var shown []uint32
	for i := from; i < to; i++ {
		if r.channels[i] != chSilent {
			shown = append(shown, r.tokens[i])
		}
	}
	return r.vocabulary.decode(shown)
}

func (f completionAPI) full(a *answer) any {
	var choices []object
	for i, c := range a.gen.choices {
		n := c.progress().generated
		choice := object{"index": i, "text": f.text(c.reply, 0, n), "logprobs": nil, "finish_reason": c.reply.finish}
		a.finishFields(choice, c.reply)
		if a.req.ReturnTokenIDs && !a.sglang() {
			choice["token_ids"], choice["prompt_token_ids"] = c.reply.tokens[:n], c.seq.Tokens
		}
		choices = append(choices, choice)
	}
	return object{"id": a.completionID(), "object": "text_completion", "created": a.created, "model": a.model,
		"choices": choices, "usage": json.RawMessage(a.appendUsage(nil))}
}

func (f completionAPI) chunks(dst []byte, a *answer, st *stream, i int, p progress) []byte {
	c := a.gen.choices[i]
	if c.finished {
		return dst
	}
	text := f.text(c.reply, c.sent, p.generated)
	if text == "" && !p.done {
		return dst
	}
	finish := ""
	if p.done {
		finish, c.finished = c.reply.finish, true
		a.finals++
	}
	dst = a.head(dst, a.completionID(), "text_completion")
	dst = append(dst, `"choices":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	dst = append(dst, `,"text":`...)
	dst = append(dst, quote(text)...)
	dst = append(dst, `,"logprobs":null,"finish_reason":`...)
	dst = appendFinish(dst, finish)
	dst = a.stopField(dst, finish)
	if !c.opened && a.req.ReturnTokenIDs && !a.sglang() {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, c.seq.Tokens)
	}
	c.opened = true
	dst = a.tokenIDs(dst, c.reply.tokens[c.sent:p.generated])
	dst = append(dst, '}', ']')
	c.sent = p.generated
	st.deltas++
	return a.tail(dst)
}

func (completionAPI) usageChunk(dst []byte, a *answer) []byte {
	dst = a.head(dst, a.completionID(), "text_completion")
	dst = append(dst, `"choices":[],"usage":`...)
	dst = a.appendUsage(dst)
	return append(dst, "}\n\n"...)
}
