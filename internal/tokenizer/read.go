package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Read makes a Tokenizer of the text of a tokenizer.json. Its Config is empty.
func Read(tokenizerJSON []byte) (*Tokenizer, error) {
	if len(tokenizerJSON) > MaxFileBytes {
		return nil, tooLarge("tokenizer.json", int64(len(tokenizerJSON)), MaxFileBytes)
	}
	t := &Tokenizer{}
	f, err := readFields(tokenizerJSON)
	if err == nil {
		err = t.read(f, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// read fills t from tokenizer.json and the tokens that are defined beside it.
func (t *Tokenizer) read(f *file, beside []addedToken) error {
	file := f.values
	if err := checkSizes(file); err != nil {
		return err
	}
	if err := t.normalizer.read(file["normalizer"], "normalizer"); err != nil {
		return err
	}
	noSpaces := t.normalizer.noSpaces()
	if err := t.pre.read(file["pre_tokenizer"], "pre_tokenizer", noSpaces); err != nil {
		return err
	}
	if err := t.post.read(file["post_processor"], "post_processor"); err != nil {
		return err
	}
	if err := t.decoder.read(file["decoder"], "decoder"); err != nil {
		return err
	}
	var tokens []addedToken
	if err := json.Unmarshal(orNull(file["added_tokens"]), &tokens); err != nil {
		return fmt.Errorf("added_tokens: %w", err)
	}
	tokens = withTokens(tokens, beside)
	late := slices.ContainsFunc(tokens, func(a addedToken) bool { return a.Normalized })
	lazy := t.pre.metaspace
	if noSpaces && !late && len(t.pre.stages) == 0 && !t.pre.byteLevel {
		// The model reads spaces as U+2581, which saves a copy of the text.
		t.normalizer.steps = t.normalizer.steps[:len(t.normalizer.steps)-1]
		lazy = true
	}
	if err := t.model.read(f, t.pre.byteLevel, lazy, t.pre.metaspace && t.pre.split); err != nil {
		return err
	}
	t.add(tokens)
	return nil
}

// checkSizes bounds the parts of which much is made in memory.
func checkSizes(file map[string]json.RawMessage) error {
	for _, name := range []string{"normalizer", "pre_tokenizer", "post_processor", "decoder"} {
		if n := len(file[name]); n > maxComponentBytes {
			return tooLarge(name, int64(n), maxComponentBytes)
		}
	}
	if n := len(file["added_tokens"]); n > maxAddedBytes {
		return tooLarge("added_tokens", int64(n), maxAddedBytes)
	}
	return nil
}

// withTokens appends the tokens defined beside tokenizer.json. Those of
// added_tokens_decoder replace the file's, named special tokens only fill gaps.
func withTokens(tokens, beside []addedToken) []addedToken {
	known := map[string]bool{}
	for _, a := range tokens {
		known[a.Content] = true
	}
	for _, a := range beside {
		if a.override || !known[a.Content] {
			tokens = append(tokens, a)
			known[a.Content] = true
		}
	}
	return tokens
}

func orNull(data json.RawMessage) json.RawMessage {
	if len(data) == 0 {
		return json.RawMessage("null")
	}
	return data
}

// add takes the added tokens into the matchers.
func (t *Tokenizer) add(tokens []addedToken) {
	v := t.model.vocab
	var raw, late []addedToken
	sc := &scratch{}
	for _, a := range assignIDs(tokens, v, t.pre.byteLevel) {
		if int(a.id) >= len(v.spans) || len(v.bytes(a.id)) == 0 {
			v.name(a.Content, a.id, t.pre.byteLevel)
		}
		if !a.Normalized {
			a.text = []byte(a.Content)
			raw = append(raw, a)
		} else if a.text = slices.Clone(t.normalizer.apply(sc, []byte(a.Content), false)); len(a.text) > 0 {
			late = append(late, a)
			if string(a.text) != a.Content {
				t.rename(a)
			}
		}
	}
	t.raw, t.late, t.plain = newMatcher(raw), newMatcher(late), len(t.normalizer.steps) == 0
	if t.plain {
		late = nil // Split finds them
	}
	t.findCuts(late)
}

// rename makes an added token decode to its normalized text.
func (t *Tokenizer) rename(a addedToken) {
	if t.names == nil {
		t.names = map[uint32][]byte{}
	}
	word := a.text
	if t.pre.byteLevel {
		word, _ = appendAlphabet(nil, a.text)
	}
	t.names[a.id] = word
}

// modelFile is the model of a file without its vocabulary and merges.
type modelFile struct {
	Type         string   `json:"type"`
	Dropout      *float64 `json:"dropout"`
	UnkToken     *string  `json:"unk_token"`
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	FuseUnk      bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
}

func readModelFile(file map[string]json.RawMessage) (*modelFile, error) {
	small := map[string]json.RawMessage{}
	for name, value := range file {
		if field, ok := strings.CutPrefix(name, "model."); ok && field != "vocab" && field != "merges" {
			small[field] = value
		}
	}
	data, err := json.Marshal(small)
	if err != nil {
		return nil, err
	}
	f := &modelFile{}
	if err := json.Unmarshal(data, f); err != nil {
		return nil, err
	}
	switch {
	case f.Type != "BPE":
		return nil, fmt.Errorf("type %q is not supported", f.Type)
	case f.Dropout != nil && *f.Dropout != 0:
		return nil, errors.New("dropout is not supported")
	case f.Prefix != nil && *f.Prefix != "":
		return nil, fmt.Errorf("continuing_subword_prefix %q is not supported", *f.Prefix)
	case f.Suffix != nil && *f.Suffix != "":
		return nil, fmt.Errorf("end_of_word_suffix %q is not supported", *f.Suffix)
	}
	return f, nil
}

func (m *model) read(file *file, byteLevel, spaceIsMeta, cutAtMeta bool) error {
	f, err := readModelFile(file.values)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if m.vocab, err = readVocab(file.values["model.vocab"], byteLevel); err != nil {
		return err
	}
	m.ignoreMerges = f.IgnoreMerges
	if byteLevel {
		err = m.readBytes(f)
	} else {
		err = m.readChars(f, spaceIsMeta, cutAtMeta)
	}
	if err != nil {
		return err
	}
	list, err := readMerges(file.values["model.merges"], file.marks, m.vocab, byteLevel)
	if err != nil {
		return err
	}
	var borders sync.WaitGroup
	borders.Go(func() { m.join(list) })
	defer borders.Wait() // what follows merges words, for which borders are of no use
	m.merges = newMerges(list)
	if m.allBytes {
		m.first = make([]uint32, 1<<16)
		for i := range m.first {
			m.first[i] = m.merges.get(uint32(m.byteIDs[i>>8]), uint32(m.byteIDs[i&0xFF]))
		}
	}
	m.findWhole()
	m.newCaches()
	return nil
}

// readBytes finds the tokens of single bytes.
func (m *model) readBytes(f *modelFile) error {
	known := 0
	for b := range m.byteIDs {
		m.byteIDs[b] = -1
		if id, ok := m.vocab.find([]byte{byte(b)}); ok {
			m.byteIDs[b] = int64(id)
			known++
		}
	}
	m.allBytes = known == 256
	if !m.allBytes && (f.UnkToken != nil || f.ByteFallback) {
		return fmt.Errorf("model: unk_token or byte_fallback with only %d of 256 bytes in the vocabulary is not supported", known)
	}
	return nil
}

// readChars finds the tokens of single characters.
func (m *model) readChars(f *modelFile, spaceIsMeta, cutAtMeta bool) error {
	if f.IgnoreMerges {
		return errors.New("model: ignore_merges of a character-level model is not supported")
	}
	c := newChars(m.vocab, f.ByteFallback)
	c.fuse, c.spaceIsMeta, c.cutAtMeta = f.FuseUnk, spaceIsMeta, cutAtMeta
	if f.UnkToken != nil {
		if c.unknown, c.hasUnknown = m.vocab.find([]byte(*f.UnkToken)); !c.hasUnknown {
			return fmt.Errorf("model: unk_token %q is not in the vocabulary", *f.UnkToken)
		}
	}
	c.delays = c.fallback && !c.allBytes && c.hasUnknown
	m.chars = c
	return nil
}

// join notes what the merges join at borders between characters.
func (m *model) join(list []merge) {
	switch {
	case m.chars != nil:
		m.joinChars(list)
	case m.allBytes:
		m.borders = &borders{}
		for _, e := range list {
			if e.left != none {
				m.borders.join(m.vocab.bytes(e.left), m.vocab.bytes(e.right))
			}
		}
	}
}

func (m *model) joinChars(list []merge) {
	c := m.chars
	// A merge of a token that stands for other text than its own crosses borders that its
	// characters do not show.
	other := func(id uint32, text []byte) bool {
		b, ok := byteToken(text)
		return ok && c.byteKnown[b] && c.bytes[b] == id || c.hasUnknown && id == c.unknown
	}
	for _, e := range list {
		a, b := m.vocab.bytes(e.left), m.vocab.bytes(e.right)
		if other(e.left, a) || other(e.right, b) {
			c.cuts = false
		}
		c.join(a, b)
	}
	c.fillASCII()
}
