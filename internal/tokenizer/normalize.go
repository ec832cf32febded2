package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// normalizer is a list of steps, each from one text to another.
type normalizer struct{ steps []step }

// step is one normalizer of the file: NFC, or the replacement of one string.
type step struct {
	nfc      bool
	prepend  []byte
	from, to []byte
}

// apply gives the normalized form of s, not empty, in s itself or in sc. inside: s is not
// the start of a gap, and nothing is put before it.
func (n *normalizer) apply(sc *scratch, s []byte, inside bool) []byte {
	for i := range n.steps {
		if inside && len(n.steps[i].prepend) > 0 {
			continue
		}
		out := n.steps[i].apply(sc.text, s)
		if len(out) == 0 {
			return out
		}
		if &out[0] != &s[0] { // s may lie in spare, which is written next
			sc.text, sc.spare, s = sc.spare, out[:0], out
		}
	}
	return s
}

func (t *step) apply(dst, s []byte) []byte {
	switch {
	case t.nfc:
		return nfc(dst, s)
	case len(t.prepend) > 0:
		return append(append(dst[:0], t.prepend...), s...)
	}
	k := bytes.Index(s, t.from)
	if k < 0 {
		return s
	}
	dst = dst[:0]
	for ; k >= 0; k = bytes.Index(s, t.from) {
		dst = append(append(dst, s[:k]...), t.to...)
		s = s[k+len(t.from):]
	}
	return append(dst, s...)
}

// component is a normalizer, pre-tokenizer, post-processor or decoder of the file, with
// the fields of all of them.
type component struct {
	Type string `json:"type"`

	Normalizers   []json.RawMessage `json:"normalizers"`
	Pretokenizers []json.RawMessage `json:"pretokenizers"`
	Processors    []json.RawMessage `json:"processors"`
	Decoders      []json.RawMessage `json:"decoders"`

	Pattern *struct {
		String *string `json:"String"`
		Regex  *string `json:"Regex"`
	} `json:"pattern"`
	Content  string `json:"content"`
	Prepend  string `json:"prepend"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`

	AddPrefixSpace   *bool  `json:"add_prefix_space"`
	UseRegex         *bool  `json:"use_regex"`
	IndividualDigits bool   `json:"individual_digits"`
	Replacement      string `json:"replacement"`
	PrependScheme    string `json:"prepend_scheme"`
	Split            *bool  `json:"split"`
	Start            int    `json:"start"`
	Stop             int    `json:"stop"`

	Single        []templatePart          `json:"single"`
	SpecialTokens map[string]templateName `json:"special_tokens"`
}

// parseComponent reads a component; null gives nil.
func parseComponent(data json.RawMessage, place string) (*component, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	c := &component{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	return c, nil
}

// unsupported names a component and what in it is not supported.
func unsupported(place string, c *component, what string) error {
	if what == "" {
		return fmt.Errorf("%s: type %q is not supported", place, c.Type)
	}
	return fmt.Errorf("%s: %s with %s is not supported", place, c.Type, what)
}

// read appends the steps of a normalizer.
func (n *normalizer) read(data json.RawMessage, place string) error {
	c, err := parseComponent(data, place)
	if c == nil || err != nil {
		return err
	}
	switch c.Type {
	case "NFC":
		n.steps = append(n.steps, step{nfc: true})
	case "Prepend":
		if c.Prepend != "" {
			n.steps = append(n.steps, step{prepend: []byte(c.Prepend)})
		}
	case "Replace":
		if c.Pattern == nil || c.Pattern.String == nil || *c.Pattern.String == "" {
			return unsupported(place, c, "a pattern that is not a string")
		}
		n.steps = append(n.steps, step{from: []byte(*c.Pattern.String), to: []byte(c.Content)})
	case "Sequence":
		for i, part := range c.Normalizers {
			if err := n.read(part, fmt.Sprintf("%s.normalizers[%d]", place, i)); err != nil {
				return err
			}
		}
	default:
		return unsupported(place, c, "")
	}
	return nil
}

// noSpaces reports whether the last step leaves no space in the text.
func (n *normalizer) noSpaces() bool {
	return len(n.steps) > 0 && n.steps[len(n.steps)-1].spaceToMeta()
}

// keepsASCII reports whether the steps leave ASCII characters other than spaces alone and what
// stands beside them, and whether NFC is one.
func (n *normalizer) keepsASCII() (nfc, ok bool) {
	for i := range n.steps {
		s := &n.steps[i]
		if !s.nfc && len(s.prepend) == 0 && !s.spaceToMeta() {
			return nfc, false
		}
		nfc = nfc || s.nfc
	}
	return nfc, true
}

func (t *step) spaceToMeta() bool { return string(t.from) == " " && string(t.to) == metaStr }
