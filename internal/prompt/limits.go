package prompt

import (
	"bytes"
	"fmt"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
)

// The work in this process that one request may cost. Where the limits end it the identity
// comes from the engine, else from text.
const (
	// localDeadline bounds rendering and tokenising. Each of its parts has half of it at
	// least, whatever those before it took.
	localDeadline = 20 * time.Millisecond
	// maxText is the longest text that is rendered, in bytes: in time for it to be read from
	// the memo, and more than four million tokens of prose.
	maxText = 16 << 20
	// maxValues bounds the values made for a chat template, each of which takes about 100 ns
	// and 140 bytes; a message counts as eight, a part of its content as four.
	maxValues = 100_000
)

// tooMuch says why a request is not rendered here, or "". text is the length of its
// canonical form.
func tooMuch(req *openai.Request, body []byte, text int) string {
	if text > maxText {
		return fmt.Sprintf("%d bytes of text, more than %d", text, maxText)
	}
	if len(body) < 2*maxValues {
		return ""
	}
	if n := values(req, body); n > maxValues {
		return fmt.Sprintf("about %d values for the chat template, more than %d", n, maxValues)
	}
	return ""
}

// values is about how many values a template's variables hold, or more; it stops counting
// beyond maxValues. In strings, commas and brackets count as if the string were read as
// JSON, which that of a tool call is.
func values(req *openai.Request, body []byte) int {
	t := &req.Template
	n := 8 * len(req.Messages)
	for _, s := range []openai.Span{t.Tools, t.Kwargs, t.Documents, t.ReasoningEffort} {
		if s.Present() {
			n += separators(s.Of(body))
		}
	}
	for i := 0; i < len(req.Messages) && n <= maxValues; i++ {
		m := &req.Messages[i]
		if m.Other {
			n += separators(m.Span.Of(body))
			if m.Content.Present() {
				n -= separators(m.Content.Of(body))
			}
		}
		n += 4 * elements(body, m.Content, (maxValues-n)/4+1)
	}
	return n
}

// elements is the number of elements of a list, most at most; 0 for what is none.
func elements(body []byte, s openai.Span, most int) (n int) {
	if !s.Present() || body[s.Start] != '[' {
		return 0
	}
	var r openai.Reader
	r.Reset(body, s)
	for r.Array(); n < most && r.Elem(); n++ {
		r.Skip()
	}
	return n
}

func separators(json []byte) (n int) {
	for _, sep := range []string{",", "[", "{", `\u`} {
		n += bytes.Count(json, []byte(sep))
	}
	return n
}
