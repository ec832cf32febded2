package tokenizer

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// bare encodes like t but without any cache or cut: the words that the pre-tokenizer gives,
// merged one pair at a time.
func bare(t *Tokenizer, text []byte) (ids []uint32) {
	sc := &scratch{}
	t.walk(validUTF8(nil, text), func(lo, hi int, token *addedToken) bool {
		if token != nil {
			ids = append(ids, token.id)
			return true
		}
		words := [][]byte{t.normalizer.apply(sc, validUTF8(nil, text)[lo:hi], false)}
		for _, stage := range t.pre.stages {
			var cut [][]byte
			for _, w := range words {
				for i := 0; i < len(w); {
					j := stage.next(w, i)
					cut = append(cut, w[i:j])
					i = j
				}
			}
			words = cut
		}
		for _, w := range words {
			ids = append(ids, bareWord(&t.model, w)...)
		}
		return true
	})
	return ids
}

func bareWord(m *model, word []byte) []uint32 {
	if id, ok := m.vocab.find(word); ok && m.ignoreMerges {
		return []uint32{id}
	}
	var s symbols
	m.symbolsOf(&s, word)
	for {
		at, low := -1, none
		for i := 0; i+1 < len(s.ids); i++ {
			if rank := m.merges.get(s.ids[i], s.ids[i+1]); rank < low {
				at, low = i, rank
			}
		}
		if at < 0 {
			return s.ids
		}
		s.ids[at] = m.merges.result[low]
		s.ids = slices.Delete(s.ids, at+1, at+2)
	}
}

// randomText mixes scripts, runs and special tokens.
func randomText(r *rand.Rand) []byte {
	pieces := []string{"the ", "of", " and\n", "中文字符", "日本語", "한국어", "при", "вет", "e\u0301", "1234", "  ", "\t\n", "😀", "ไทย", "=-", "'ll", "<|im_end|>", "\xff", "ab", "A", "\u00a0"}
	var b []byte
	for range r.IntN(40) {
		p := pieces[r.IntN(len(pieces))]
		n := 1
		if r.IntN(8) == 0 {
			n = r.IntN(70)
		}
		b = append(b, strings.Repeat(p, n)...)
	}
	return b
}

// Caches, cuts, windows and heaps change nothing.
func TestEncode_EqualsMergingOnePairAtATime(t *testing.T) {
	for _, dir := range families(t) {
		tok := load(t, dir)
		if tok.pre.metaspace || tok.late != nil && !tok.plain {
			continue // bare knows no prepending and no second pass
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 60 {
			text := randomText(r)
			if got, want := tok.Encode(nil, text), bare(tok, text); !slices.Equal(got, want) {
				t.Fatalf("%s: Encode(%q)\n got %v\nwant %v", dir, text, got, want)
			}
		}
	}
}

// Long words are merged as one, whatever the windows do.
func TestLong_EqualsOneHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, dir := range families(t) {
		tok := load(t, dir)
		for range 60 {
			alphabet := []string{"a", "ab", "the", "etaoin", " ", "=-", "中文", "aaaab"}[r.IntN(8)]
			word := make([]byte, 0, 6000)
			for len(word) < 300+r.IntN(5000) {
				i := r.IntN(len(alphabet))
				if r.IntN(2) == 0 || alphabet[0] >= 0x80 {
					word = append(word, alphabet...)
				} else {
					word = append(word, alphabet[i])
				}
			}
			var s symbols
			tok.model.symbolsOf(&s, word)
			tok.model.merges.mergeLong(&s, nil, nil)
			if got := tok.model.long(&scratch{}, nil, word); !slices.Equal(got, s.ids) {
				t.Fatalf("%s: long(%q) = %d ids, the heap gives %d", dir, word, len(got), len(s.ids))
			}
		}
	}
}

// Huge and repetitive texts take time and memory in proportion.
func TestEncode_HostileTexts(t *testing.T) {
	for _, dir := range []string{"testdata/qwen3", "testdata/gemma", "testdata/llama2", "testdata/deepseek_v3"} {
		tok := load(t, dir)
		for _, unit := range []string{"a", " ", "\n", "<", "<|im_", "e\u0301", "\u0323\u0301", "中文字", "\xff", "\x00", "<s>", " \n"} {
			text := bytes.Repeat([]byte(unit), 1<<18/len(unit))
			ids := tok.Encode(nil, text)
			if len(ids) == 0 || len(ids) > 3*len(text)+1 {
				t.Errorf("%s: %d ids for %d bytes of %q", dir, len(ids), len(text), unit)
			}
		}
		sc := tok.scratch()
		if n := cap(sc.text) + cap(sc.spare) + cap(sc.valid) + cap(sc.word) + 4*cap(sc.now.ids) + 12*cap(sc.nodes); n > 8*keepScratch {
			t.Errorf("%s: %d bytes of scratch are kept", dir, n)
		}
	}
}

func TestEncode_Concurrent(t *testing.T) {
	tok := load(t, "testdata/qwen3")
	other := load(t, "testdata/qwen3")
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 5))
			for range 100 {
				text := randomText(r)
				if got, want := tok.Encode(nil, text), bare(other, text); !slices.Equal(got, want) {
					t.Errorf("Encode(%q) = %v, want %v", text, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte("The quick brown fox's 123 中文 e\u0301\n\n  x<|im_end|>"))
	f.Add([]byte("\xff\xe4\xb8 \u0323\u0301 ab"))
	f.Add(bytes.Repeat([]byte(" a"), 3000))
	var toks []*Tokenizer
	for _, dir := range families(f) {
		toks = append(toks, load(f, dir))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, tok := range toks {
			ids := tok.Encode(nil, text)
			var parts []uint32
			at := 0
			tok.Split(text, func(gap []byte, id uint32, added bool) bool {
				if added {
					parts = append(parts, id)
				} else {
					parts = tok.EncodeGap(parts, gap, at == 0)
				}
				at++
				return true
			})
			if !slices.Equal(ids, parts) {
				t.Errorf("%q: %v by gaps, %v at once", text, parts, ids)
			}
			if again := tok.Encode(nil, text); !slices.Equal(ids, again) {
				t.Errorf("%q: %v, then %v", text, ids, again)
			}
			tok.Decode(nil, ids)
		}
	})
}
