package openai

import "math"

// The two values that HintSpeculative points at. Nobody writes them.
var yes, no = true, false

// readHints reads nvext.agent_hints. Speculative prefill is ours: its member is the
// one that Rewrite can remove.
func (v *Request) readHints() error {
	r := &v.r
	if r.Null() {
		return nil
	}
	if k := r.Peek(); k != '{' && k != 0 {
		return wrongType("nvext", "nvext", "an object")
	}
	seen := false
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) != "agent_hints" {
			r.Skip()
			continue
		}
		if seen {
			return duplicate("nvext", "nvext.agent_hints")
		}
		seen = true
		if err := v.readAgentHints(); err != nil {
			return err
		}
	}
	return nil
}

func (v *Request) readAgentHints() error {
	r := &v.r
	if r.Null() {
		return nil
	}
	if k := r.Peek(); k != '{' && k != 0 {
		return wrongType("nvext", "nvext.agent_hints", "an object")
	}
	osl := false
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "speculative_prefill":
			if v.hint.Present() {
				return duplicate("nvext", "nvext.agent_hints.speculative_prefill")
			}
			if err := v.readSpeculative(); err != nil {
				return err
			}
		case "osl":
			if osl {
				return duplicate("nvext", "nvext.agent_hints.osl")
			}
			osl = true
			n := 0
			if err := v.whole("nvext.agent_hints.osl", &n); err != nil {
				return err
			}
			v.OutputTokensHint = min(max(n, 0), math.MaxInt32)
		default:
			r.Skip()
		}
	}
	return nil
}

// readSpeculative reads the hint and the span that removes its member: with the comma
// before it, else with the one behind it.
func (v *Request) readSpeculative() error {
	r := &v.r
	span := Span{r.commaPos, 0}
	if span.Start < 0 {
		span.Start = r.keyStart
	}
	first := r.commaPos < 0
	switch r.Peek() {
	case 't':
		v.HintSpeculative = &no
		if r.Bool() {
			v.HintSpeculative = &yes
		}
	case 'n':
		r.Null()
	case 0:
		return nil
	default:
		return wrongType("nvext", "nvext.agent_hints.speculative_prefill", "true or false")
	}
	span.End = r.pos
	if r.space(); first && r.pos < len(r.data) && r.data[r.pos] == ',' {
		span.End = r.pos + 1
	}
	v.hint = span
	return nil
}
