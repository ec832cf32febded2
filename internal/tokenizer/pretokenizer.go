package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// The parts of the expressions that several models share.
const (
	contractionsRE = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	spacesRE       = `|\s*[\r\n]+|\s+(?!\S)|\s+`
	upperRE        = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lowerRE        = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	prefixRE       = `[^\r\n\p{L}\p{N}]?`
	gpt2RE         = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// patterns are the expressions that are known, by their exact text. full: one that
// matches every character.
var patterns = map[string]struct {
	cut  cutter
	full bool
}{
	contractionsRE + `|` + prefixRE + `\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + spacesRE: {&cl100k{classLetter, 3}, true},
	contractionsRE + `|` + prefixRE + `\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + spacesRE:      {&cl100k{classLetter, 1}, true},
	contractionsRE + `|` + prefixRE + `[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + spacesRE: {
		&cl100k{classLetter | classMark, 1}, true},
	o200kRE(contractionsRE+"?", `\p{N}{1,3}`): {&o200k{3, true}, true},
	o200kRE("", `\p{N}`):                      {&o200k{1, false}, true},
	o200kRE("", `\p{N}{1,3}`):                 {&o200k{3, false}, true},
	gpt2RE:                                    {gpt2{}, true},
	`\p{N}{1,3}`:                              {numbers{3}, false},
	`\p{N}`:                                   {numbers{1}, false},
	`[一-龥぀-ゟ゠-ヿ]+`:                            {cjk{}, false},
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*" +
		"|\\s*[\r\n]+|\\s+(?!\\S)|\\s+": {deepseek{}, false},
}

func o200kRE(contractions, numbers string) string {
	return prefixRE + upperRE + "*" + lowerRE + "+" + contractions + "|" +
		prefixRE + upperRE + "+" + lowerRE + "*" + contractions + "|" +
		numbers + `| ?[^\s\p{L}\p{N}]+[\r\n/]*` + spacesRE
}

// pretokenizer is what happens to a normalized gap before words are merged.
type pretokenizer struct {
	stages    []cutter // each cuts the pieces of the one before
	byteLevel bool
	prefix    bool // a gap that does not begin with a space gets one

	metaspace bool
	scheme    string // of metaspace: "always", "first", "never"
	split     bool   // metaspace cuts before each U+2581
}

func (p *pretokenizer) read(data json.RawMessage, place string, noSpaces bool) error {
	c, err := parseComponent(data, place)
	if c == nil || err != nil {
		return err
	}
	if (p.byteLevel || p.metaspace) && c.Type != "Sequence" {
		return unsupported(place, c, "a place after ByteLevel or Metaspace")
	}
	switch c.Type {
	case "Sequence":
		for i, part := range c.Pretokenizers {
			if err := p.read(part, fmt.Sprintf("%s.pretokenizers[%d]", place, i), noSpaces); err != nil {
				return err
			}
		}
		return nil
	case "Split":
		return p.readSplit(c, place, noSpaces)
	case "Digits":
		limit := math.MaxInt
		if c.IndividualDigits {
			limit = 1
		}
		p.stages = append(p.stages, numbers{limit})
		return nil
	case "ByteLevel":
		p.byteLevel = true
		p.prefix = c.AddPrefixSpace == nil || *c.AddPrefixSpace
		if p.prefix && len(p.stages) > 0 {
			return unsupported(place, c, "add_prefix_space after another pre-tokenizer")
		}
		if c.UseRegex == nil || *c.UseRegex {
			p.stages = append(p.stages, gpt2{})
		}
		return nil
	case "Metaspace":
		return p.readMetaspace(c, place)
	}
	return unsupported(place, c, "")
}

// cutsWords reports whether one of the stages ends its matches where endsWord says.
func (p *pretokenizer) cutsWords() bool {
	return slices.ContainsFunc(p.stages, func(c cutter) bool {
		switch c.(type) {
		case numbers, cjk:
			return false
		}
		return true
	})
}

func (p *pretokenizer) readSplit(c *component, place string, noSpaces bool) error {
	if c.Pattern == nil || (c.Pattern.String == nil) == (c.Pattern.Regex == nil) {
		return unsupported(place, c, "no pattern")
	}
	if text := c.Pattern.String; text != nil {
		if *text == " " && noSpaces && len(p.stages) == 0 {
			return nil // Gemma: the normalizer leaves no space to split at
		}
		return fmt.Errorf("%s: Split pattern String %q is not supported", place, *text)
	}
	known, ok := patterns[*c.Pattern.Regex]
	if !ok {
		return fmt.Errorf("%s: Split pattern %q is not supported", place, *c.Pattern.Regex)
	}
	isolated := c.Behavior == "Isolated"
	if known.full { // there are only matches, or only what lies between the matches
		isolated = isolated || c.Behavior == "Removed" && c.Invert
	}
	if !isolated {
		return unsupported(place, c, fmt.Sprintf("behavior %q and invert %v", c.Behavior, c.Invert))
	}
	p.stages = append(p.stages, known.cut)
	return nil
}

func (p *pretokenizer) readMetaspace(c *component, place string) error {
	p.metaspace, p.scheme = true, c.PrependScheme
	if p.scheme == "" {
		p.scheme = "always"
	}
	old := c.AddPrefixSpace
	if r, size := utf8.DecodeRuneInString(c.Replacement); r != meta || size != len(c.Replacement) {
		return unsupported(place, c, fmt.Sprintf("replacement %q", c.Replacement))
	}
	if p.scheme != "always" && p.scheme != "first" && p.scheme != "never" {
		return unsupported(place, c, fmt.Sprintf("prepend_scheme %q", p.scheme))
	}
	if old != nil && !*old && p.scheme != "never" {
		return unsupported(place, c, "add_prefix_space false and prepend_scheme "+p.scheme)
	}
	if len(p.stages) > 0 {
		return unsupported(place, c, "a place after another pre-tokenizer")
	}
	p.split = c.Split == nil || *c.Split
	return nil
}
