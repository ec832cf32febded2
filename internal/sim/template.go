package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// mediaTokens is the length of the placeholder run of one image or one audio clip.
const mediaTokens = 64

// message is one chat message as clients send it.
type message struct {
	Role             string     `json:"role"`
	Content          content    `json:"content"`
	Reasoning        string     `json:"reasoning"`
	ReasoningContent string     `json:"reasoning_content"`
	ToolCalls        []toolCall `json:"tool_calls"`
}

type toolCall struct {
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"` // a string with JSON in it
	} `json:"function"`
}

// content is a message's content: null, a string or a list of parts.
type content []part

type part struct {
	text  string
	media uint32 // special token of the placeholder, 0 for text
	hash  uint64 // of the media's source
}

func (c *content) UnmarshalJSON(b []byte) error {
	*c = nil
	switch {
	case bytes.Equal(b, []byte("null")):
		return nil
	case len(b) > 0 && b[0] == '"':
		p := part{}
		if inner := b[1 : len(b)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
			p.text = string(inner) // what most content is, without another pass of json
		} else if err := json.Unmarshal(b, &p.text); err != nil {
			return err
		}
		*c = content{p}
		return nil
	}
	var parts []map[string]json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return fmt.Errorf("content must be a string or a list of parts: %w", err)
	}
	for _, m := range parts {
		var kind string
		if err := json.Unmarshal(m["type"], &kind); err != nil {
			return fmt.Errorf("content part without a type: %w", err)
		}
		p := part{}
		switch kind {
		case "text", "input_text", "output_text", "refusal":
			key := "text"
			if kind == "refusal" {
				key = kind
			}
			if err := json.Unmarshal(m[key], &p.text); err != nil {
				return fmt.Errorf("content part of type %s without text: %w", kind, err)
			}
		case "image_url", "input_image", "image":
			p.media, p.hash = tokImage, xxh3.Hash(m[kind])
		case "input_audio", "audio_url", "audio":
			p.media, p.hash = tokAudio, xxh3.Hash(m[kind])
		default:
			return fmt.Errorf("content part of unknown type %q", kind)
		}
		*c = append(*c, p)
	}
	return nil
}

// rendering says how a chat becomes tokens.
type rendering struct {
	Messages []message         `json:"messages"`
	Tools    []json.RawMessage `json:"tools"`
	Kwargs   struct {
		EnableThinking *bool `json:"enable_thinking"`
	} `json:"chat_template_kwargs"`
	AddGenerationPrompt  *bool `json:"add_generation_prompt"`
	ContinueFinalMessage bool  `json:"continue_final_message"`
}

// rendered is a prompt in tokens.
type rendered struct {
	tokens []uint32
	media  []Media
	thinks bool // the reply opens with reasoning
}

// render applies the chat template. Tools come first, then the messages in order, each
// with its role; the prompt ends where the model begins to write.
//
// The plain template renders history as it was generated, so a next turn extends the
// KV of the last one exactly. The thinking template, like Qwen3's, drops the reasoning
// of all assistant messages before the last user message, so the KV of a turn diverges
// from the next prompt at its first generated token.
func (r *rendering) render(like Personality, thinking bool) rendered {
	out := rendered{thinks: thinking && (r.Kwargs.EnableThinking == nil || *r.Kwargs.EnableThinking)}
	if len(r.Tools) > 0 {
		out.tokens = append(out.tokens, tokStart)
		out.text("system")
		out.tokens = append(out.tokens, tokSep, tokTools)
		var b bytes.Buffer
		for _, tool := range r.Tools {
			if json.Compact(&b, tool) == nil {
				b.WriteByte('\n')
			}
		}
		out.text(b.String())
		out.tokens = append(out.tokens, tokEnd)
	}
	lastUser := -1
	for i, m := range r.Messages {
		if m.Role == "user" {
			lastUser = i
		}
	}
	open := false
	var prefix content // of a reply that SGLang continues: it stands behind the prompt for one
	for i, m := range r.Messages {
		last := i == len(r.Messages)-1
		if last && m.Role == "assistant" && like == SGLang {
			if r.ContinueFinalMessage {
				prefix = m.Content
				break
			}
			m = message{Role: "user", Content: m.Content} // it has no other place for a trailing reply
		}
		out.tokens = append(out.tokens, tokStart)
		out.text(m.Role)
		out.tokens = append(out.tokens, tokSep)
		if reasoning := m.Reasoning + m.ReasoningContent; thinking && i > lastUser && m.Role == "assistant" && reasoning != "" {
			if m.Reasoning != "" {
				reasoning = m.Reasoning // both names of one text
			}
			out.tokens = append(out.tokens, tokThink)
			out.text(reasoning)
			out.tokens = append(out.tokens, tokThinkEnd)
		}
		out.content(m.Content)
		for _, c := range m.ToolCalls {
			out.tokens = append(out.tokens, tokCall)
			out.text(callText(c.Function.Name, argumentsText(c.Function.Arguments)))
			out.tokens = append(out.tokens, tokCallEnd)
		}
		if open = last && r.ContinueFinalMessage && like == VLLM; !open {
			out.tokens = append(out.tokens, tokEnd)
		}
	}
	if !open && (like == SGLang || r.AddGenerationPrompt == nil || *r.AddGenerationPrompt) {
		out.tokens = append(out.tokens, tokStart)
		out.text("assistant")
		out.tokens = append(out.tokens, tokSep)
		if thinking && !out.thinks {
			out.tokens = append(out.tokens, tokThink, tokThinkEnd)
		}
	}
	out.content(prefix)
	return out
}

// sglangTools are the tools that SGLang's template sees: none where none may be called, one
// where it must be.
func (q *genRequest) sglangTools() []json.RawMessage {
	if string(q.ToolChoice) == `"none"` {
		return nil
	}
	type named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var choice named
	if json.Unmarshal(q.ToolChoice, &choice) != nil || choice.Function.Name == "" {
		return q.Tools
	}
	var tools []json.RawMessage
	for _, raw := range q.Tools {
		var tool named
		if json.Unmarshal(raw, &tool) == nil && tool.Function == choice.Function {
			tools = append(tools, raw)
		}
	}
	return tools
}

func (o *rendered) text(s string) { o.tokens = appendTokens(o.tokens, s) }

// content appends a message's parts; adjacent texts are one text.
func (o *rendered) content(c content) {
	var text []byte
	for _, p := range c {
		if p.media == 0 {
			text = append(text, p.text...)
			continue
		}
		o.text(string(text))
		text = text[:0]
		o.media = append(o.media, Media{Start: len(o.tokens), End: len(o.tokens) + mediaTokens, Hash: p.hash})
		for range mediaTokens {
			o.tokens = append(o.tokens, p.media)
		}
	}
	o.text(string(text))
}

// callText is how a tool call reads in a prompt and in a reply.
func callText(name, arguments string) string {
	n, _ := json.Marshal(name)
	return `{"name":` + string(n) + `,"arguments":` + arguments + `}`
}

func argumentsText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return string(raw) // an object, as some clients echo it
	}
	return s
}
