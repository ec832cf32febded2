package openai

import (
	"fmt"
	"math"
)

// maxMessages and maxPromptTokens bound what the view of one body may take: with the
// shortest messages it would be five times the body.
const (
	maxMessages     = 1 << 17
	maxPromptTokens = 1 << 23
)

// roles are the names that need no copy.
var roles = [...]string{"user", "assistant", "tool", "system", "developer", "function"}

func (v *Request) readMessages() error {
	r := &v.r
	if k := r.Peek(); k != '[' {
		if k == 0 {
			return nil
		}
		return wrongType("messages", "messages", "an array")
	}
	v.FirstTurn = true
	r.Array()
	for r.Elem() {
		if len(v.Messages) == maxMessages {
			return &RequestError{Param: "messages", Message: fmt.Sprintf("messages: more than %d", maxMessages)}
		}
		v.Messages = append(v.Messages, Message{})
		i := len(v.Messages) - 1
		m := &v.Messages[i]
		if err := v.readMessage(m, i); err != nil {
			return err
		}
		if m.Role == "assistant" {
			v.FirstTurn = false
		}
		if m.Media && !v.Multimodal {
			v.Multimodal, v.FirstMedia = true, i
		}
	}
	if len(v.Messages) == 0 && r.err == nil {
		return &RequestError{Param: "messages", Message: "messages: expected at least one message"}
	}
	return nil
}

func (v *Request) readMessage(m *Message, i int) error {
	r := &v.r
	if k := r.Peek(); k != '{' {
		if k == 0 {
			return nil
		}
		return messageError(i, ": expected an object")
	}
	m.Start = r.pos
	var seen uint
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		bit := memberBit(key)
		if seen&bit != 0 {
			return messageError(i, "."+string(key)+": given twice; send it once")
		}
		seen |= bit
		switch bit {
		case memberRole:
			if k := r.Peek(); k != '"' && k != 0 {
				return messageError(i, ".role: expected a string")
			}
			m.Role = roleName(r)
		case memberContent:
			if err := v.readContent(m, i); err != nil {
				return err
			}
		default:
			if !r.Null() {
				r.Skip()
				m.Other = true
			}
		}
	}
	m.End = r.pos
	if m.Role == "" && r.err == nil {
		return messageError(i, ".role: missing; send system, user, assistant or tool")
	}
	return nil
}

const (
	memberRole = 1 << iota
	memberContent
	memberName
	memberToolCalls
	memberToolCallID
	memberFunctionCall
	memberReasoning
	memberReasoningContent
	memberTools
)

// memberBit returns the bit of a message's member that templates read, 0 for others.
func memberBit(key []byte) uint {
	switch string(key) {
	case "role":
		return memberRole
	case "content":
		return memberContent
	case "name":
		return memberName
	case "tool_calls":
		return memberToolCalls
	case "tool_call_id":
		return memberToolCallID
	case "function_call":
		return memberFunctionCall
	case "reasoning":
		return memberReasoning
	case "reasoning_content":
		return memberReasoningContent
	case "tools":
		return memberTools
	}
	return 0
}

func roleName(r *Reader) string {
	raw, escaped := r.String()
	if escaped {
		raw = Unescape(nil, raw)
	}
	for _, s := range roles {
		if string(raw) == s {
			return s
		}
	}
	return string(raw)
}

func (v *Request) readContent(m *Message, i int) error {
	r := &v.r
	switch r.Peek() {
	case '"':
		start := r.pos
		r.str()
		m.Content = Span{start, r.pos}
	case 'n':
		r.Null()
	case '[':
		start := r.pos
		r.Array()
		for r.Elem() {
			text, problem := readPart(r)
			if problem != "" {
				return messageError(i, ".content: "+problem)
			}
			if !text {
				m.Media = true
			}
		}
		m.Content = Span{start, r.pos}
	case 0:
	default:
		return messageError(i, ".content: expected a string or an array of parts")
	}
	return nil
}

// readPart reads one content part and tells whether it is text. A part of a type that
// is not known counts as a placeholder: its tokens cannot be told from its bytes.
func readPart(r *Reader) (text bool, problem string) {
	switch r.Peek() {
	case '"':
		r.str()
		return true, ""
	case '{':
	case 0:
		return false, ""
	default:
		return false, "expected each part to be an object or a string"
	}
	var hasType, hasText, plain bool
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			if hasType {
				return false, "a part's type is given twice; send it once"
			}
			hasType = true
			if k := r.Peek(); k != '"' && k != 0 {
				return false, "expected a part's type to be a string"
			}
			raw, _ := r.String()
			plain = TextPart(raw)
		case "text":
			if hasText {
				return false, "a part's text is given twice; send it once"
			}
			hasText = true
			if k := r.Peek(); k != '"' && k != 'n' && k != 0 {
				return false, "expected a part's text to be a string"
			}
			r.Skip()
		default:
			r.Skip()
		}
	}
	return plain || !hasType && hasText, ""
}

// TextPart tells whether content parts of this type are rendered as their text.
func TextPart(typ []byte) bool {
	switch string(typ) {
	case "text", "input_text", "output_text", "refusal", "thinking":
		return true
	}
	return false
}

func (v *Request) readPrompt() error {
	const want = "a string, an array of strings, an array of token ids or an array of those"
	r := &v.r
	switch r.Peek() {
	case '"':
		v.Prompt = r.Skip()
		v.PromptCount = 1
		return nil
	case 'n', 0:
		r.Null()
		return nil
	case '[':
	default:
		return wrongType("prompt", "prompt", want)
	}
	r.Array()
	var kind byte
	for r.Elem() {
		k := r.Peek()
		if kind == 0 {
			kind = k
		}
		if k != kind && k != 0 {
			return wrongType("prompt", "prompt", want)
		}
		switch k {
		case '"':
			s := r.Skip()
			if v.PromptCount++; v.PromptCount == 1 {
				v.Prompt = s
			}
		case '0':
			v.PromptCount = 1
			if err := v.readTokenID(); err != nil {
				return err
			}
		case '[':
			if v.PromptCount++; v.PromptCount > 1 {
				r.Skip()
				continue
			}
			r.Array()
			for r.Elem() {
				if k := r.Peek(); k != '0' && k != 0 {
					return wrongType("prompt", "prompt", want)
				}
				if err := v.readTokenID(); err != nil {
					return err
				}
			}
		case 0:
			return nil
		default:
			return wrongType("prompt", "prompt", want)
		}
	}
	if v.PromptCount == 0 && r.err == nil {
		return &RequestError{Param: "prompt", Message: "prompt: expected at least one prompt"}
	}
	return nil
}

func (v *Request) readTokenID() error {
	n, ok := v.r.Int()
	if v.r.err == nil && (!ok || n < 0 || n > math.MaxUint32) {
		return wrongType("prompt", "prompt", "token ids from 0 to 4294967295")
	}
	if len(v.PromptTokens) == maxPromptTokens {
		return &RequestError{Param: "prompt", Message: fmt.Sprintf("prompt: more than %d tokens", maxPromptTokens)}
	}
	v.PromptTokens = append(v.PromptTokens, uint32(n))
	return nil
}
