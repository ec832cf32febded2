package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Load reads the tokenizer of a model's directory: tokenizer.json, and where they exist
// tokenizer_config.json, special_tokens_map.json, generation_config.json and the chat
// templates. Like transformers it adds tokens that only tokenizer_config.json defines.
func Load(dir string) (*Tokenizer, error) {
	var f *file
	var fileErr error
	var reading sync.WaitGroup
	reading.Go(func() { f, fileErr = loadFile(dir) })
	config, tokens, err := readConfig(dir)
	if reading.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if fileErr != nil {
		return nil, fileErr
	}
	t := &Tokenizer{config: config}
	if err := t.read(f, tokens); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "tokenizer.json"), err)
	}
	return t, nil
}

// loadFile reads tokenizer.json.
func loadFile(dir string) (*file, error) {
	data, err := readFile(dir, "tokenizer.json", MaxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	path := filepath.Join(dir, "tokenizer.json")
	if data == nil {
		return nil, fmt.Errorf("%s: %w", path, os.ErrNotExist)
	}
	f, err := readFields(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// readTemplates finds the chat templates: chat_template.jinja with the files of
// additional_chat_templates, else the field chat_template of tokenizer_config.json, else
// of the processor's chat_template.json.
func (c *Config) readTemplates(dir string, o object) error {
	if err := c.templateFiles(dir); err != nil || len(c.ChatTemplates) > 0 {
		return err
	}
	if err := c.templateField("tokenizer_config.json", o["chat_template"]); err != nil || len(c.ChatTemplates) > 0 {
		return err
	}
	processor, err := readObject(dir, "chat_template.json")
	if err != nil {
		return err
	}
	return c.templateField("chat_template.json", processor["chat_template"])
}

func (c *Config) templateFiles(dir string) error {
	source, err := readFile(dir, "chat_template.jinja", maxTemplateBytes)
	if err != nil {
		return err
	}
	if source != nil {
		c.ChatTemplates = append(c.ChatTemplates, ChatTemplate{"default", string(source)})
	}
	names, err := additional(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		source, err := readFile(dir, name, maxTemplateBytes)
		if err != nil {
			return err
		}
		c.ChatTemplates = append(c.ChatTemplates, ChatTemplate{strings.TrimSuffix(filepath.Base(name), ".jinja"), string(source)})
	}
	return nil
}

// templateField reads a string, or a list of named templates.
func (c *Config) templateField(file string, data json.RawMessage) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		data = slices.Concat([]byte(`[{"name":"default","template":`), data, []byte("}]"))
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(orNull(data), &list); err != nil {
		return fmt.Errorf("%s: chat_template: %w", file, err)
	}
	if len(list) > maxTemplates {
		return fmt.Errorf("%s: chat_template: %d templates are more than the limit of %d", file, len(list), maxTemplates)
	}
	for _, t := range list {
		c.ChatTemplates = append(c.ChatTemplates, ChatTemplate{t.Name, t.Template})
	}
	slices.SortStableFunc(c.ChatTemplates, func(a, b ChatTemplate) int {
		return boolInt(b.Name == "default") - boolInt(a.Name == "default")
	})
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func keys(o object) iter.Seq[string] { return maps.Keys(o) }
