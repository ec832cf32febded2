package sim

import (
	"slices"
	"strings"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
)

// The toy vocabulary. A token is up to four bytes of text, little-endian; UTF-8 has no
// byte above 0xF4, so the top byte tells the rest apart:
//
//	0x00..0xF4 b2 b1 b0   four bytes of text
//	0xF8+n     b2 b1 b0   the last n < 4 bytes before a special token or the end
//	0xFF       0  0  k    special token k
//
// Text starts afresh after each special token, so tokens are stable at message
// boundaries, and every list of tokens turns back into the text it came from.
const (
	partialTop = 0xF8
	specialTop = 0xFF
)

// Special tokens.
const (
	tokStart    = specialTop<<24 | iota // opens a message
	tokSep                              // between a message's role and its content
	tokEnd                              // closes a message; the end of a reply
	tokThink                            // opens reasoning
	tokThinkEnd                         // closes it
	tokTools                            // before the list of tools
	tokCall                             // opens a tool call
	tokCallEnd                          // closes it
	tokImage                            // one patch of an image
	tokAudio                            // one frame of audio
	firstUnknown
)

var specials = [...]string{
	"<|im_start|>", "<|im_sep|>", "<|im_end|>", "<think>", "</think>", "<|tools|>",
	"<tool_call>", "</tool_call>", "<|image|>", "<|audio|>",
}

// appendTokens tokenises text; the names of special tokens in it become those tokens,
// as real tokenizers have it.
func appendTokens(dst []uint32, text string) []uint32 {
	for {
		at, k := nextSpecial(text)
		if k < 0 {
			return appendText(dst, text)
		}
		dst = appendText(dst, text[:at])
		dst = append(dst, uint32(specialTop<<24|k))
		text = text[at+len(specials[k]):]
	}
}

// nextSpecial finds the first special token's name in text; k is -1 without one.
func nextSpecial(text string) (at, k int) {
	for at = 0; ; at++ {
		i := strings.IndexByte(text[at:], '<')
		if i < 0 {
			return 0, -1
		}
		at += i
		for k, name := range specials {
			if strings.HasPrefix(text[at:], name) {
				return at, k
			}
		}
	}
}

func appendText(dst []uint32, text string) []uint32 {
	for ; len(text) >= 4; text = text[4:] {
		dst = append(dst, uint32(text[0])|uint32(text[1])<<8|uint32(text[2])<<16|uint32(text[3])<<24)
	}
	if n := len(text); n > 0 {
		t := uint32(partialTop+n) << 24
		for i := range n {
			t |= uint32(text[i]) << (8 * i)
		}
		dst = append(dst, t)
	}
	return dst
}

// appendDecoded appends the text of one token; an id that the tokenizer never makes
// has none.
func appendDecoded(dst []byte, t uint32) []byte {
	switch top := t >> 24; {
	case top == specialTop:
		if k := t & 0xFFFFFF; int(k) < len(specials) {
			dst = append(dst, specials[k]...)
		}
		return dst
	case top > partialTop:
		for i := range min(top-partialTop, 3) {
			dst = append(dst, byte(t>>(8*i)))
		}
		return dst
	}
	return append(dst, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
}

// vocabulary is the toy one, or that of a real model.
type vocabulary struct{ model *prompt.Model }

// prompt returns the tokens of a completion's text; never nil, which JSON would show.
func (v vocabulary) prompt(text string) []uint32 {
	if v.model == nil {
		return appendTokens([]uint32{}, text)
	}
	body := append(openai.AppendString([]byte(`{"model":"m","prompt":`), text), '}')
	ids, err := v.model.Tokenize(openai.Completions, body, prompt.StyleVLLM)
	if err != nil {
		return []uint32{}
	}
	return ids
}

// words returns the tokens of a part of a reply.
func (v vocabulary) words(text string) []uint32 {
	if v.model == nil {
		return appendText(nil, text)
	}
	return v.model.Encode(text)
}

// marks are what a real model writes for the toy vocabulary's special tokens: Qwen's way,
// which others share.
var marks = map[uint32]string{
	tokThink: "<think>\n", tokThinkEnd: "\n</think>\n\n", tokCall: "<tool_call>\n", tokCallEnd: "\n</tool_call>",
}

// mark returns the tokens of a special token.
func (v vocabulary) mark(token uint32) []uint32 {
	if v.model == nil {
		return []uint32{token}
	}
	return v.model.Encode(marks[token])
}

// openThink returns the tokens that open reasoning, none where the prompt has opened it.
func (v vocabulary) openThink(prompt []uint32) []uint32 {
	m := v.mark(tokThink)
	if v.model != nil && len(prompt) >= len(m) && slices.Equal(prompt[len(prompt)-len(m):], m) {
		return nil
	}
	return m
}

// end returns the token that ends a reply.
func (v vocabulary) end() uint32 {
	if v.model != nil {
		if id, ok := v.model.EOS(); ok {
			return id
		}
	}
	return tokEnd
}

func (v vocabulary) decode(tokens []uint32) string {
	if v.model != nil {
		return v.model.Decode(tokens)
	}
	b := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		b = appendDecoded(b, t)
	}
	return string(b)
}
