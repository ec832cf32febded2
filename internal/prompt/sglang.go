package prompt

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/warmroute/warmroute/internal/jinja"
	"github.com/warmroute/warmroute/internal/openai"
)

// What SGLang makes of a chat before its template, as its releases 0.5.12 to 0.5.23 have it
// (entrypoints/openai/serving_chat.py, _process_messages and _apply_jinja_template).

// sglangMessages returns the conversation. A trailing reply in one text is no reply to
// SGLang: where the request continues it, its text follows the prompt for the next one,
// else it becomes the user's (_handle_last_assistant_message).
func (c *converter) sglangMessages() (jinja.Value, error) {
	list := make([]jinja.Value, 0, len(c.req.Messages))
	for i := range c.req.Messages {
		m := &c.req.Messages[i]
		v, err := c.sglangMessage(m)
		if err != nil {
			return jinja.Value{}, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if i < len(c.req.Messages)-1 || !strings.EqualFold(m.Role, "assistant") || c.parts && c.isList(m.Content) {
			list = append(list, v)
			continue
		}
		text, err := c.plain(m.Content)
		if err != nil {
			return jinja.Value{}, err
		}
		if c.continued() {
			c.prefix = text
			break
		}
		d := jinja.NewDict(2)
		d.Set("role", jinja.String("user"))
		d.Set("content", jinja.String(text))
		list = append(list, d.Value())
	}
	return jinja.List(list), nil
}

// sglangMessage has the members of SGLang's own types: a user's message has its content
// only, any other one is a ChatCompletionMessageGenericParam.
func (c *converter) sglangMessage(m *openai.Message) (jinja.Value, error) {
	if m.Media {
		return jinja.Value{}, errMedia
	}
	role := strings.ToLower(m.Role)
	d := jinja.NewDict(6)
	d.Set("role", jinja.String(role))
	list := c.parts && c.isList(m.Content)
	content, err := c.content(m.Content, list && role != "tool")
	if err != nil {
		return jinja.Value{}, err
	}
	if !list {
		d.Set("content", content)
	}
	if m.Other && role != "user" {
		err = c.sglangMembers(d, m, role)
	}
	d.Set("content", content) // a list, and what was one, stands behind the rest
	return d.Value(), err
}

func (c *converter) sglangMembers(d *jinja.Dict, m *openai.Message, role string) error {
	var id, name, reasoning, calls openai.Span
	r := &c.r
	r.Reset(c.body, m.Span)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		null := r.Peek() == 'n'
		what := string(key)
		s := r.Skip()
		switch {
		case null:
		case what == "tool_call_id":
			id = s
		case what == "name":
			name = s
		case what == "reasoning_content":
			reasoning = s
		case what == "tool_calls" && role != "assistant":
			return errors.New("tool_calls of a message that is no assistant's")
		case what == "tool_calls":
			calls = s
		case what == "tools" || what == "phase" || what == "prefix":
			return fmt.Errorf("%s: versions of SGLang differ in what they make of it", what)
		}
	}
	for _, x := range [...]named{{"tool_call_id", id}, {"name", name}, {"reasoning_content", reasoning}} {
		if err := c.into(d, x.name, x.value); err != nil {
			return err
		}
	}
	return c.toolCalls(d, calls)
}

func (c *converter) isList(s openai.Span) bool { return s.Present() && c.body[s.Start] == '[' }

// errPart says that a part is none of a text, which alone SGLang joins.
var errPart = errors.New("a part of the content is no text part")

// sglangParts tells whether SGLang hands a list of parts to a template as it is
// (detect_jinja_template_content_format): to one that has to do with media, and to one
// that loops over the content of a variable of one of three names.
func sglangParts(source string, t *jinja.Template) bool {
	for _, word := range [...]string{"image", "audio", "video", "vision"} {
		if strings.Contains(source, word) {
			return true
		}
	}
	return t.ReadsParts() && sglangLoop.MatchString(source)
}

var sglangLoop = regexp.MustCompile(`\bin\s+\(?\s*(message|msg|m)\s*(\.\s*content|\[\s*['"]content['"]\s*\])`)

// appendPrefix appends the tokens of a reply's beginning, which SGLang makes apart from
// those before it (_append_assistant_prefix_to_prompt_ids): with the special tokens of a
// text, but without the one that begins it.
func (m *Model) appendPrefix(ids []uint32, prefix string) []uint32 {
	if prefix == "" {
		return ids
	}
	from := len(ids)
	ids = append(m.tok.Encode(append(ids, m.before...), []byte(prefix)), m.after...)
	bos := m.Encode(m.tok.Config().BOSToken)
	if len(bos) == 1 && len(ids) > from && ids[from] == bos[0] {
		ids = append(ids[:from], ids[from+1:]...)
	}
	return ids
}
