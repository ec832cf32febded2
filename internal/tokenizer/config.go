package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Config is what stands beside tokenizer.json, as transformers reads it.
type Config struct {
	// ChatTemplates are the Jinja sources, the one named "default" first. Empty: none.
	ChatTemplates []ChatTemplate

	// Special tokens; "" when the model has none.
	BOSToken, EOSToken, PadToken, UnkToken string
	// SpecialTokens are the variables of templates: all named special tokens that the
	// model has, the four above too, as transformers' special_tokens_map.
	SpecialTokens []SpecialToken

	EOSIDs []uint32 // eos_token_id of generation_config.json
}

// ChatTemplate is one named chat template.
type ChatTemplate struct{ Name, Source string }

// SpecialToken is a special token by the name of its template variable, like bos_token.
type SpecialToken struct{ Name, Text string }

// namedTokens are the special tokens that every tokenizer has, in transformers' order.
var namedTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// object is a JSON object, the values not yet read.
type object map[string]json.RawMessage

func readObject(dir, name string) (object, error) {
	data, err := readFile(dir, name, maxConfigBytes)
	if err != nil || data == nil {
		return nil, err
	}
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return o, nil
}

// parseToken reads a special token: a string, or an object with content.
func parseToken(data json.RawMessage) (t addedToken, ok bool) {
	switch {
	case bytes.HasPrefix(data, []byte(`"`)):
		ok = json.Unmarshal(data, &t.Content) == nil
	case bytes.HasPrefix(data, []byte(`{`)):
		ok = json.Unmarshal(data, &t) == nil && t.Content != ""
	}
	t.Special = true
	return t, ok
}

// readConfig reads the files beside tokenizer.json, and the added tokens that they define.
func readConfig(dir string) (c Config, tokens []addedToken, err error) {
	o, err := readObject(dir, "tokenizer_config.json")
	if err != nil {
		return c, nil, err
	}
	if _, newer := o["added_tokens_decoder"]; !newer {
		legacy, err := readObject(dir, "special_tokens_map.json")
		if err != nil {
			return c, nil, err
		}
		if o == nil {
			o = object{}
		}
		for key, value := range legacy {
			o[key] = value
		}
	}
	if tokens, err = o.decoderTokens(); err != nil {
		return c, nil, err
	}
	tokens = c.readTokens(o, tokens)
	if err := c.readTemplates(dir, o); err != nil {
		return c, nil, err
	}
	return c, tokens, c.readGeneration(dir)
}

// decoderTokens reads added_tokens_decoder, in order of its ids.
func (o object) decoderTokens() ([]addedToken, error) {
	data, ok := o["added_tokens_decoder"]
	if !ok {
		return nil, nil
	}
	var byID map[string]addedToken
	if err := json.Unmarshal(data, &byID); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %w", err)
	}
	ids := make([]int, 0, len(byID))
	for key := range byID {
		id, err := strconv.Atoi(key)
		if err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: id %q is no number", key)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	tokens := make([]addedToken, 0, len(ids))
	for _, id := range ids {
		t := byID[strconv.Itoa(id)]
		t.override = true
		tokens = append(tokens, t)
	}
	return tokens, nil
}

// readTokens sets the special tokens and appends them to tokens.
func (c *Config) readTokens(o object, tokens []addedToken) []addedToken {
	add := func(name string, data json.RawMessage) {
		t, ok := parseToken(data)
		if !ok {
			return
		}
		tokens = append(tokens, t)
		if name != "" {
			c.SpecialTokens = append(c.SpecialTokens, SpecialToken{name, t.Content})
		}
	}
	for _, name := range namedTokens {
		add(name, o[name])
	}
	extra := object{}
	for key, value := range o {
		if strings.HasSuffix(key, "_token") && !slices.Contains(namedTokens, key) {
			extra[key] = value
		}
	}
	var named object
	if json.Unmarshal(orNull(o["extra_special_tokens"]), &named) == nil {
		for key, value := range named {
			extra[key] = value
		}
	}
	for _, name := range slices.Sorted(keys(extra)) {
		add(name, extra[name])
	}
	for _, key := range []string{"additional_special_tokens", "extra_special_tokens"} {
		var list []json.RawMessage
		if json.Unmarshal(orNull(o[key]), &list) == nil {
			for _, data := range list {
				add("", data)
			}
		}
	}
	for _, t := range c.SpecialTokens {
		switch t.Name {
		case "bos_token":
			c.BOSToken = t.Text
		case "eos_token":
			c.EOSToken = t.Text
		case "pad_token":
			c.PadToken = t.Text
		case "unk_token":
			c.UnkToken = t.Text
		}
	}
	return tokens
}

// readGeneration reads eos_token_id, a number or a list.
func (c *Config) readGeneration(dir string) error {
	o, err := readObject(dir, "generation_config.json")
	if err != nil {
		return err
	}
	data := orNull(o["eos_token_id"])
	if !bytes.HasPrefix(data, []byte("[")) {
		data = slices.Concat([]byte("["), data, []byte("]"))
	}
	var ids []*uint32
	if err := json.Unmarshal(data, &ids); err != nil {
		return fmt.Errorf("generation_config.json: eos_token_id: %w", err)
	}
	for _, id := range ids {
		if id != nil {
			c.EOSIDs = append(c.EOSIDs, *id)
		}
	}
	return nil
}
