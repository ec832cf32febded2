package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// tiny is the model of a hand-made tokenizer.json whose merges make the words "the", " the"
// and "ab", for the byte level; bytes outside " abceht" are added by byteVocab.
func tiny(t testing.TB, rest string) *Tokenizer {
	t.Helper()
	tok, err := Read([]byte(tinyJSON(rest)))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func tinyJSON(rest string) string {
	return fmt.Sprintf(`{"added_tokens":[
{"id":9,"content":"<s>","special":true},
{"id":300,"content":"<user>","special":true,"rstrip":true},
{"id":301,"content":"<user> x","special":true}],%s
"model":{"type":"BPE","vocab":{"Ġ":0,"a":1,"b":2,"c":3,"e":4,"h":5,"t":6,"ab":7,"th":8,"<s>":9,"the":10,"Ġthe":11,"Ċ":12,"bc":13},
"merges":["a b",["t","h"],["th","e"],"Ġ the","b c"]}}`, rest)
}

const gpt2Level = `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"decoder":{"type":"ByteLevel"},`

func TestEncode_Tiny(t *testing.T) {
	tok := tiny(t, gpt2Level)
	for _, c := range []struct {
		text string
		want []uint32
	}{
		{"", nil},
		{"the the", []uint32{10, 11}},
		{"abc", []uint32{7, 3}}, // "a b" comes before "b c"
		{"<s>bc", []uint32{9, 13}},
		{"a<user>  b", []uint32{1, 14, 2}},   // takes the spaces after it along
		{"<user> x<user>", []uint32{15, 14}}, // the longest wins; ids count on from the vocabulary
		{"a  the\n", []uint32{1, 0, 11, 12}}, // the last space goes with the word
		{strings.Repeat("z", 9), nil},        // bytes that the vocabulary lacks vanish
		{"\xff" + "ab\xe4\xb8", []uint32{7}}, // U+FFFD is not in the vocabulary either
		{strings.Repeat("ab", 99), slices.Repeat([]uint32{7}, 99)},
	} {
		if got := tok.Encode(nil, []byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("Encode(%q) = %v, want %v", c.text, got, c.want)
		}
	}
}

func TestDecode_GivesTheText(t *testing.T) {
	tok := tiny(t, gpt2Level)
	const text = "<s>the abc<user> x\n the"
	if got := tok.Decode(nil, tok.Encode(nil, []byte(text))); string(got) != text {
		t.Errorf("Decode(Encode(%q)) = %q", text, got)
	}
	if got := tok.Decode([]byte("kept"), []uint32{1, 1 << 31, 2}); string(got) != "keptab" {
		t.Errorf("an unknown id: %q", got)
	}
}

// What a character-level model makes of characters outside its vocabulary; the ids are Hugging
// Face's.
func TestEncode_UnknownCharacters(t *testing.T) {
	const file = `{"added_tokens":[],"model":{"type":"BPE","unk_token":%s,"fuse_unk":%t,"byte_fallback":%t,
"vocab":{"a":0,"b":1,"c":2,"ab":3,"<0x7A>":4},"merges":[["a","b"]]}}`
	for _, c := range []struct {
		unk            string
		fuse, fallback bool
		text           string
		want           []uint32
	}{
		{`"c"`, true, false, "azzbzab", []uint32{0, 2, 1, 2, 3}},
		{`"c"`, false, false, "azzbzab", []uint32{0, 2, 2, 1, 2, 3}},
		{"null", false, false, "azzbzab", []uint32{3, 3}},     // dropped, and the neighbours merge
		{`"c"`, true, true, "azyzb", []uint32{0, 4, 4, 2, 1}}, // the unknown token comes late
		{`"c"`, true, true, "y" + strings.Repeat("z", 300) + "b", append(slices.Repeat([]uint32{4}, 300), 2, 1)},
	} {
		tok, err := Read(fmt.Appendf(nil, file, c.unk, c.fuse, c.fallback))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode(nil, []byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("unk %s fuse %v fallback %v: Encode(%.20q) = %v, want %v", c.unk, c.fuse, c.fallback, c.text, got, c.want)
		}
	}
}

// The three prepend schemes of Metaspace, with and without a split at every space.
func TestEncode_Metaspace(t *testing.T) {
	const file = `{"added_tokens":[{"content":"<x>","special":true}],
"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%t},
"model":{"type":"BPE","vocab":{"a":0,"b":1,"▁":2,"▁a":3,"▁▁":4},"merges":[["▁","a"],["▁","▁"]]}}`
	for _, c := range []struct {
		scheme string
		split  bool
		text   string
		want   []uint32
	}{
		{"always", true, "a<x>a", []uint32{3, 5, 3}},
		{"first", true, "a<x>a", []uint32{3, 5, 0}},
		{"never", true, "a<x>a", []uint32{0, 5, 0}},
		{"always", true, " a", []uint32{3}},
		{"always", true, "▁a", []uint32{3}},
		{"never", true, "b   a", []uint32{1, 2, 2, 3}},
		{"never", false, "b   b", []uint32{1, 4, 2, 1}},
	} {
		tok, err := Read(fmt.Appendf(nil, file, c.scheme, c.split))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode(nil, []byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%s, split %v: Encode(%q) = %v, want %v", c.scheme, c.split, c.text, got, c.want)
		}
	}
}
