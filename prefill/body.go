package prefill

import (
	"bytes"
	"errors"

	"github.com/warmroute/warmroute/internal/openai"
)

// stubs are the contents of the message that stands for what comes next. They differ in
// their first letter, so the common prefix of two renderings ends where the next
// message's own text begins. Templates treat some texts apart (tool responses, white
// space, numbers): these are none of them.
var stubs = [2]string{"warm-up", "Placeholder"}

// stubsFor returns the stubs for a conversation: some templates compare messages by their
// text, so none of its own may read like one.
func stubsFor(body []byte, v *openai.Request) [2]string {
	out := stubs
	for i := range out {
		for says(body, v, out[i]) {
			out[i] = stubs[i] + " " + newID()
		}
	}
	return out
}

// says tells whether some message's content is text.
func says(body []byte, v *openai.Request, text string) bool {
	for i := range v.Messages {
		if c := v.Messages[i].Content; c.Present() && string(partsText(c.Of(body))) == text {
			return true
		}
	}
	return false
}

var (
	errThinking = errors.New("reasoning in the content does not end")
	errContinue = errors.New("the request continues an assistant message")
)

// warmBody appends the warm request for the turn that follows body, the client's own
// request, which v was parsed from, and its reply m, which the client will write back as e
// says. Every byte outside the fields of the table stays as it was.
func warmBody(dst, body []byte, v *openai.Request, m *reply, e *echo, stub string) ([]byte, error) {
	if continues(body, v) {
		return nil, errContinue
	}
	message, err := e.assistant(nil, m)
	if err != nil {
		return nil, err
	}
	message = e.stub(message, m, stub)

	var r openai.Reader
	r.Reset(body, whole(body))
	limited := limitField(body)
	r.Object()
	dst = append(dst, '{')
	start, written := r.Pos(), false
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		from := r.Pos() // behind the colon
		value := r.Skip()
		if !value.Present() {
			break
		}
		what := fields[name]
		member := body[start:value.End] // with the white space before it
		start = value.End + bytes.IndexByte(body[value.End:], ',') + 1
		if what == drop || what == limit && name != limited {
			continue
		}
		if written {
			dst = append(dst, ',')
		}
		written = true
		head := member[:len(member)-(value.End-value.Start)]
		switch {
		case what == limit:
			dst = append(append(dst, head...), '1')
		case what == choose && forced(body[from:value.End]):
			dst = append(append(dst, head...), `"auto"`...)
		case what == extend:
			dst = append(dst, member[:len(member)-1]...)
			dst = append(dst, message...)
			dst = append(dst, ']')
		default:
			dst = append(dst, member...)
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if limited == "" {
		dst = append(dst, `,"max_tokens":1`...)
	}
	return append(dst, '}'), nil
}

// whole is the body without a byte order mark.
func whole(body []byte) openai.Span {
	s := openai.Span{Start: 0, End: len(body)}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		s.Start = 3
	}
	return s
}

// limitField returns the field that says how many tokens to generate: the newer of those
// that the client set, "" where it set none.
func limitField(body []byte) string {
	var r openai.Reader
	r.Reset(body, whole(body))
	var set, null string
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		if fields[name] != limit {
			r.Skip()
			continue
		}
		if r.Null() {
			null = name
			continue
		}
		r.Skip()
		if set == "" || name == "max_completion_tokens" {
			set = name
		}
	}
	if set == "" {
		return null
	}
	return set
}

// forced tells whether a tool choice is neither "auto" nor "none".
func forced(value []byte) bool {
	switch string(bytes.TrimSpace(value)) {
	case `"auto"`, `"none"`, "null":
		return false
	}
	return true
}

// continues tells whether the reply goes on where the client's last message stopped, so
// that the client's next history has no message that ends there.
func continues(body []byte, v *openai.Request) bool {
	is := func(s openai.Span, word string) bool { return s.Present() && string(s.Of(body)) == word }
	return is(v.Template.ContinueFinalMessage, "true") || is(v.Template.AddGenerationPrompt, "false")
}

// inlineMarks open and close reasoning that an engine without a reasoning parser leaves
// in the content. Some templates open it in the prompt, so the first may be missing.
var inlineMarks = [][2]string{{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}

// withoutReasoning returns the text behind the last closing mark, and whether there was
// reasoning. ok is false where it was opened and never closed.
func withoutReasoning(content []byte) (rest []byte, thought, ok bool) {
	for _, mark := range inlineMarks {
		if i := bytes.LastIndex(content, []byte(mark[1])); i >= 0 {
			return content[i+len(mark[1]):], true, true
		}
		if bytes.Contains(content, []byte(mark[0])) {
			return nil, true, false
		}
	}
	return content, false, true
}

// thoughtInline tells whether the content holds reasoning.
func (m *reply) thoughtInline() bool {
	_, thought, _ := withoutReasoning(openai.Unescape(nil, m.content))
	return thought
}

// assistant appends ",{…}": the reply as the client will write it into its history.
func (e *echo) assistant(dst []byte, m *reply) ([]byte, error) {
	dst = append(dst, `,{"role":"assistant"`...)
	switch {
	case len(m.content) > 0:
		dst = append(dst, `,"content":`...)
		text := openai.Unescape(nil, m.content)
		rest, thought, ok := withoutReasoning(text)
		switch {
		case !ok:
			return nil, errThinking
		case thought && !e.inline:
			dst = openai.AppendString(dst, string(rest))
		default:
			dst = append(append(append(dst, '"'), m.content...), '"')
		}
	case e.content != "":
		dst = append(append(dst, `,"content":`...), e.content...)
	}
	for i, name := range reasoningNames {
		if e.reasoning[i] && m.thought() {
			raw := m.reasoning[i]
			if len(raw) == 0 {
				raw = m.reasoning[1-i]
			}
			dst = append(append(dst, `,"`...), name...)
			dst = append(append(append(dst, `":"`...), raw...), '"')
		}
	}
	for i := range m.calls {
		c := &m.calls[i]
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(append(dst, `{"id":"`...), c.id...)
		dst = append(append(dst, `","type":"function","function":{"name":"`...), c.name...)
		dst = append(append(dst, `","arguments":"`...), c.args...)
		dst = append(dst, `"}}`...)
	}
	if len(m.calls) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, '}'), nil
}

// stub appends the messages that stand for what comes next: one tool's answer per call,
// else a user's.
func (e *echo) stub(dst []byte, m *reply, content string) []byte {
	for i := range m.calls {
		c := &m.calls[i]
		dst = append(append(dst, `,{"role":"tool","tool_call_id":"`...), c.id...)
		if e.toolNames {
			dst = append(append(dst, `","name":"`...), c.name...)
		}
		dst = append(append(append(dst, `","content":"`...), content...), `"}`...)
	}
	if len(m.calls) == 0 {
		dst = append(append(append(dst, `,{"role":"user","content":"`...), content...), `"}`...)
	}
	return dst
}

// warmHeader appends the client's header lines that a warm request takes over and its
// own. rank is -1 where the worker has one rank.
func warmHeader(dst, header []byte, id string, rank string) []byte {
	for line := range bytes.Lines(header) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		if !headers[string(bytes.ToLower(bytes.TrimSpace(name)))] {
			dst = append(dst, line...)
		}
	}
	dst = append(append(append(dst, "X-Request-Id: "...), id...), "\r\n"...)
	dst = append(dst, "X-Warmroute-Prefill: 1\r\n"...)
	dst = appendTrace(dst, header)
	if rank != "" {
		dst = append(append(append(dst, "X-Data-Parallel-Rank: "...), rank...), "\r\n"...)
	}
	return dst
}
