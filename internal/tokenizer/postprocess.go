package tokenizer

import (
	"encoding/json"
	"fmt"
)

// templatePart is {"SpecialToken": {"id": …}} or {"Sequence": {"id": "A"}}.
type templatePart struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type templateName struct {
	IDs []uint32 `json:"ids"`
}

// postProcessor holds the ids before and after the text of EncodeSpecial.
type postProcessor struct{ before, after []uint32 }

func (p *postProcessor) read(data json.RawMessage, place string) error {
	c, err := parseComponent(data, place)
	if c == nil || err != nil {
		return err
	}
	switch c.Type {
	case "ByteLevel": // changes offsets only
		return nil
	case "Sequence":
		for i, part := range c.Processors {
			if err := p.read(part, fmt.Sprintf("%s.processors[%d]", place, i)); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		return p.readTemplate(c, place)
	}
	return unsupported(place, c, "")
}

// readTemplate puts the template's special tokens around what earlier processors made.
func (p *postProcessor) readTemplate(c *component, place string) error {
	var before, after []uint32
	texts := 0
	for i, part := range c.Single {
		switch {
		case part.Sequence != nil && part.Sequence.ID == "A":
			texts++
		case part.SpecialToken != nil:
			name, ok := c.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("%s.single[%d]: special token %q is not defined", place, i, part.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, name.IDs...)
			} else {
				after = append(after, name.IDs...)
			}
		default:
			return fmt.Errorf("%s.single[%d]: only SpecialToken and Sequence A are supported", place, i)
		}
	}
	if texts != 1 {
		return fmt.Errorf("%s.single: %d texts are not supported", place, texts)
	}
	p.before, p.after = append(before, p.before...), append(p.after, after...)
	return nil
}
