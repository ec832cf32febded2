package prefill

import "github.com/warmroute/warmroute/internal/openai"

// echo is how a client writes the assistant's messages back into its history, learned
// from those that it has written already.
type echo struct {
	reasoning [2]bool // by reasoningNames
	inline    bool    // reasoning within the content stays
	content   string  // of a message that only calls tools: "null", `""` or "" for no field
	toolNames bool    // tool messages carry the tool's name
}

// habit is what was seen of how clients write replies back.
type habit struct {
	echo
	fields, marks, calls, tools bool // which parts of echo were seen
}

// over returns h, filled in by older.
func (h habit) over(older habit) habit {
	if !h.fields {
		h.fields, h.reasoning = older.fields, older.reasoning
	}
	if !h.marks {
		h.marks, h.inline = older.marks, older.inline
	}
	if !h.calls {
		h.calls, h.content = older.calls, older.content
	}
	if !h.tools {
		h.tools, h.toolNames = older.tools, older.toolNames
	}
	return h
}

// said is what of a reply its echo can show.
type said struct{ field, marks, onlyCalls bool }

func (m *reply) said() said {
	return said{m.thought(), m.thoughtInline(), len(m.calls) > 0 && len(m.content) == 0}
}

// seen reads what a request does with the reply at message n, which said what s says.
func seen(body []byte, v *openai.Request, n int, s said) (h habit) {
	if len(v.Messages) <= n || v.Messages[n].Role != "assistant" {
		return h
	}
	is := styleOf(body, &v.Messages[n])
	if s.field {
		h.fields, h.reasoning = true, is.reasoning
	}
	if s.marks {
		h.marks, h.inline = true, is.inline
	}
	if s.onlyCalls && is.content != "text" {
		h.calls, h.content = true, is.content
	}
	for i := n + 1; i < len(v.Messages) && v.Messages[i].Role == "tool"; i++ {
		m := &v.Messages[i]
		h.tools, h.toolNames = true, m.Other && hasMember(body, m.Span, "name")
	}
	return h
}

// maxHabits bounds the tenants and models whose clients' habits are kept.
const maxHabits = 4096

// habits are what was seen last of each tenant's clients, by scope without its trigger.
type habits map[scope]habit

// note takes what was seen of one client and tells whether another was forgotten for it.
func (t habits) note(s scope, h habit) (forgot bool) {
	if h == (habit{}) {
		return false
	}
	s.trigger = ""
	old, known := t[s]
	if !known && len(t) >= maxHabits {
		for any := range t { // map order is random
			delete(t, any)
			break
		}
		forgot = true
	}
	t[s] = h.over(old)
	return forgot
}

func (t habits) of(s scope) habit {
	s.trigger = ""
	return t[s]
}

// echoOf returns how the reply to a request will be written back. The best witness is this
// conversation's last reply (own), then the messages in its history: the last assistant
// message of the kind that is to be written, else the last one. A conversation's first
// reply goes by what this tenant's other clients did (others). Where there is no witness of
// what matters for reply m, other is how it would be written in the other way.
func echoOf(body []byte, v *openai.Request, m *reply, own, others habit) (e, other echo) {
	e = others.echo
	if !others.calls {
		e.content = "null"
	}
	found, answered := false, false
	for i := len(v.Messages) - 1; i >= 0; i-- {
		x := &v.Messages[i]
		if x.Role == "tool" && !answered {
			e.toolNames, answered = x.Other && hasMember(body, x.Span, "name"), true
		}
		if x.Role != "assistant" {
			continue
		}
		s := styleOf(body, x)
		same := s.calls == (len(m.calls) > 0)
		if !found || same {
			e.reasoning, e.inline = s.reasoning, s.inline
			found = true
		}
		if s.calls && s.content != "text" {
			e.content, others.calls = s.content, true
		}
		if same {
			break
		}
	}
	e = own.over(habit{e, true, true, true, true}).echo
	return e, e.otherwise(m, habit{
		fields: own.fields || others.fields || found, marks: own.marks || others.marks || found,
		calls: own.calls || others.calls, tools: own.tools || others.tools || answered,
	})
}

// otherwise returns e with what nobody has seen turned to its contrary, as far as reply m
// shows it.
func (e echo) otherwise(m *reply, seen habit) echo {
	s := m.said()
	if s.field && !seen.fields {
		for i := range e.reasoning {
			e.reasoning[i] = len(m.reasoning[i]) > 0
		}
	}
	if s.marks && !seen.marks {
		e.inline = !e.inline
	}
	if s.onlyCalls && !seen.calls {
		e.content = `""`
	}
	if len(m.calls) > 0 && !seen.tools {
		e.toolNames = !e.toolNames
	}
	return e
}

// style is what one assistant message shows.
type style struct {
	echo
	calls bool
}

func styleOf(body []byte, m *openai.Message) style {
	s := style{}
	var r openai.Reader
	r.Reset(body, m.Span)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "content":
			v := r.Skip()
			switch raw := string(v.Of(body)); {
			case raw == "null" || raw == `""`:
				s.content = raw
			default:
				s.content = "text"
				_, s.inline, _ = withoutReasoning(openai.Unescape(nil, v.Of(body)))
			}
		case "tool_calls":
			v := r.Skip()
			s.calls = v.Present() && filled(v.Of(body))
		case reasoningNames[0]:
			v := r.Skip()
			s.reasoning[0] = v.Present() && filled(v.Of(body))
		case reasoningNames[1]:
			v := r.Skip()
			s.reasoning[1] = v.Present() && filled(v.Of(body))
		default:
			r.Skip()
		}
	}
	return s
}

func hasMember(body []byte, at openai.Span, name string) bool {
	var r openai.Reader
	r.Reset(body, at)
	found := false
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		found = found || string(key) == name
		r.Skip()
	}
	return found
}
