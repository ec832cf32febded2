package tokenizer

import (
	"encoding/json"
	"fmt"
)

// decoder says how the bytes of tokens become text.
type decoder struct {
	byteLevel  bool
	meta       bool // U+2581 is a space
	fallback   bool // <0xNN> is a byte
	stripFirst int  // spaces to drop at the start
}

func (d *decoder) read(data json.RawMessage, place string) error {
	c, err := parseComponent(data, place)
	if c == nil || err != nil {
		return err
	}
	switch c.Type {
	case "Sequence":
		for i, part := range c.Decoders {
			if err := d.read(part, fmt.Sprintf("%s.decoders[%d]", place, i)); err != nil {
				return err
			}
		}
	case "ByteLevel":
		d.byteLevel = true
	case "Replace":
		if c.Pattern == nil || c.Pattern.String == nil || *c.Pattern.String != metaStr || c.Content != " " {
			return unsupported(place, c, "anything but U+2581 to a space")
		}
		d.meta = true
	case "ByteFallback":
		d.fallback = true
	case "Fuse":
	case "Strip":
		if c.Content != " " || c.Stop != 0 {
			return unsupported(place, c, "anything but spaces at the start")
		}
		d.stripFirst = c.Start
	case "Metaspace":
		d.meta = true
		if c.PrependScheme != "never" && (c.AddPrefixSpace == nil || *c.AddPrefixSpace) {
			d.stripFirst = 1
		}
	default:
		return unsupported(place, c, "")
	}
	return nil
}

// Decode appends the text of ids, special tokens included. Ids that do not exist are
// passed over. Bytes are given as they are: a part of a character stays a part.
func (t *Tokenizer) Decode(dst []byte, ids []uint32) []byte {
	start := len(dst)
	for _, id := range ids {
		word, renamed := t.names[id]
		if !renamed {
			word = t.model.vocab.bytes(id)
		}
		if t.decoder.fallback {
			if b, ok := byteToken(word); ok {
				dst = append(dst, b)
				continue
			}
		}
		if t.decoder.meta {
			dst = appendSpaces(dst, word)
			continue
		}
		dst = append(dst, word...)
	}
	for range t.decoder.stripFirst {
		if len(dst) > start && dst[start] == ' ' {
			dst = append(dst[:start], dst[start+1:]...)
		}
	}
	return dst
}

// byteToken reads <0xNN>.
func byteToken(word []byte) (b byte, ok bool) {
	if len(word) != 6 || string(word[:3]) != "<0x" || word[5] != '>' {
		return 0, false
	}
	for _, c := range word[3:5] {
		switch {
		case c >= '0' && c <= '9':
			b = b<<4 | (c - '0')
		case c >= 'A' && c <= 'F':
			b = b<<4 | (c - 'A' + 10)
		default:
			return 0, false
		}
	}
	return b, true
}

// appendSpaces appends word with U+2581 as spaces.
func appendSpaces(dst, word []byte) []byte {
	for i := 0; i < len(word); i++ {
		if i+len(metaStr) <= len(word) && string(word[i:i+len(metaStr)]) == metaStr {
			dst = append(dst, ' ')
			i += len(metaStr) - 1
			continue
		}
		dst = append(dst, word[i])
	}
	return dst
}
