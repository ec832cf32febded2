package tokenizer

import (
	"slices"
	"sync"
)

// Tokenizer encodes text as one model's engine does. It is immutable but for its word
// cache, and safe for concurrent use.
type Tokenizer struct {
	raw   *matcher // added tokens looked for in the text
	late  *matcher // added tokens looked for in the normalized text
	plain bool     // nothing is normalized: late ones are found by Split too

	cuts  cuts
	names map[uint32][]byte // added tokens that decode to other text than the vocabulary's

	normalizer normalizer
	pre        pretokenizer
	post       postProcessor
	model      model
	decoder    decoder
	config     Config

	pool sync.Pool // *scratch
}

func (t *Tokenizer) scratch() *scratch {
	if sc, ok := t.pool.Get().(*scratch); ok {
		return sc
	}
	return &scratch{}
}

func (t *Tokenizer) release(sc *scratch) {
	sc.trim()
	t.pool.Put(sc)
}

// Encode appends the ids of text, added tokens recognised, without BOS and EOS: Hugging
// Face's encode with add_special_tokens=False. It allocates only to grow dst.
func (t *Tokenizer) Encode(dst []uint32, text []byte) []uint32 {
	dst = slices.Grow(dst, len(text)/4)
	sc := t.scratch()
	text, sc.valid = t.valid(sc, text)
	t.walk(text, func(lo, hi int, token *addedToken) bool {
		if token != nil {
			dst = append(dst, token.id)
		} else {
			dst = t.gap(sc, dst, text[lo:hi], lo == 0)
		}
		return true
	})
	t.release(sc)
	return dst
}

// EncodeSpecial is Encode with the ids that the post-processor puts before and after the
// text: Hugging Face's encode with add_special_tokens=True.
func (t *Tokenizer) EncodeSpecial(dst []uint32, text []byte) []uint32 {
	dst = append(dst, t.post.before...)
	dst = t.Encode(dst, text)
	return append(dst, t.post.after...)
}

// Split yields the added tokens of text and the gaps between them, in order, until yield
// gives false. For a token, added is true, id is its id and gap its text with the white space
// that it takes along. gap is only valid during the call.
func (t *Tokenizer) Split(text []byte, yield func(gap []byte, id uint32, added bool) bool) {
	sc := t.scratch()
	text, sc.valid = t.valid(sc, text)
	t.walk(text, func(lo, hi int, token *addedToken) bool {
		if token != nil {
			return yield(text[lo:hi], token.id, true)
		}
		return yield(text[lo:hi], 0, false)
	})
	t.release(sc)
}

// EncodeGap appends the ids of one gap of Split, which depend on nothing outside it. first:
// the gap begins the text.
func (t *Tokenizer) EncodeGap(dst []uint32, gap []byte, first bool) []uint32 {
	if len(gap) == 0 {
		return dst
	}
	sc := t.scratch()
	gap, sc.valid = t.valid(sc, gap)
	dst = t.gap(sc, dst, gap, first)
	t.release(sc)
	return dst
}

// valid gives text as UTF-8, and the buffer to keep.
func (t *Tokenizer) valid(sc *scratch, text []byte) (valid, buffer []byte) {
	valid = validUTF8(sc.valid, text)
	if len(valid) > 0 && len(text) > 0 && &valid[0] != &text[0] {
		return valid, valid[:0]
	}
	return valid, sc.valid
}

// walk yields gaps and added tokens as offsets of text.
func (t *Tokenizer) walk(text []byte, yield func(lo, hi int, token *addedToken) bool) {
	t.raw.split(text, func(lo, hi int, token *addedToken) bool {
		if token != nil || !t.plain || t.late == nil {
			return yield(lo, hi, token)
		}
		return t.late.split(text[lo:hi], func(a, b int, token *addedToken) bool {
			return yield(lo+a, lo+b, token)
		})
	})
}

// gap appends the ids of a gap, not empty, of valid UTF-8.
func (t *Tokenizer) gap(sc *scratch, dst []uint32, gap []byte, first bool) []uint32 {
	text := t.normalizer.apply(sc, gap, false)
	if t.plain || t.late == nil {
		return t.pieces(sc, dst, text, first)
	}
	t.late.split(text, func(lo, hi int, token *addedToken) bool {
		if token != nil {
			dst = append(dst, token.id)
		} else {
			dst = t.pieces(sc, dst, text[lo:hi], first && lo == 0)
		}
		return true
	})
	return dst
}

// pieces appends the ids of normalized text without added tokens.
func (t *Tokenizer) pieces(sc *scratch, dst []uint32, text []byte, first bool) []uint32 {
	if len(text) == 0 {
		return dst
	}
	if t.pre.wantsSpace(text, first) {
		sc.text = append(append(sc.text[:0], ' '), text...)
		text = sc.text
	}
	return t.cut(sc, dst, text, t.pre.stages)
}

// wantsSpace reports whether a space goes before text.
func (p *pretokenizer) wantsSpace(text []byte, first bool) bool {
	switch {
	case text[0] == ' ':
		return false
	case p.byteLevel:
		return p.prefix
	case !p.metaspace || p.scheme == "never" || p.scheme == "first" && !first:
		return false
	}
	r, _ := runeAt(text, 0)
	return r != meta
}

// cut sends text through the stages and merges the words that come out.
func (t *Tokenizer) cut(sc *scratch, dst []uint32, text []byte, stages []cutter) []uint32 {
	switch {
	case len(stages) == 0 && t.model.chars == nil:
		return t.model.word(sc, dst, text, 0, len(text))
	case len(stages) == 0:
		return t.model.words(sc, dst, text, t.model.chars)
	case len(stages) == 1 && t.model.chars == nil:
		return t.model.words(sc, dst, text, stages[0])
	}
	for i := 0; i < len(text); {
		j := stages[0].next(text, i)
		dst = t.cut(sc, dst, text[i:j], stages[1:])
		i = j
	}
	return dst
}

// VocabSize gives one more than the highest id.
func (t *Tokenizer) VocabSize() int { return len(t.model.vocab.spans) }

// Bytes gives the memory that the tokenizer holds, caches included, without the buffers
// of calls in progress.
func (t *Tokenizer) Bytes() int64 {
	n := t.model.memory()
	for _, m := range []*matcher{t.raw, t.late} {
		if m != nil {
			n += int64(len(m.tokens))*128 + 8192
		}
	}
	return n
}

// Config gives what Load found beside tokenizer.json. The caller must not change it.
func (t *Tokenizer) Config() *Config { return &t.config }
