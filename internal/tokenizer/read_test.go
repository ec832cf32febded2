package tokenizer

import (
	"strings"
	"testing"
)

// What is not supported is refused by name and place.
func TestRead_NamesWhatItRefuses(t *testing.T) {
	split := func(pattern, rest string) string {
		return `"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":` + pattern + rest + `},
			{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},`
	}
	for _, c := range []struct{ rest, want string }{
		{`"normalizer":{"type":"NFKC"},`, `normalizer: type "NFKC" is not supported`},
		{`"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]},`, `normalizer.normalizers[1]: type "Lowercase"`},
		{`"normalizer":{"type":"Replace","pattern":{"Regex":"a+"},"content":"b"},`, "normalizer: Replace with a pattern that is not a string"},
		{split(`{"Regex":"\\w+"}`, `,"behavior":"Isolated","invert":false`), `pre_tokenizer.pretokenizers[0]: Split pattern "\\w+" is not supported`},
		{split(`{"String":" "}`, `,"behavior":"Isolated","invert":false`), `pre_tokenizer.pretokenizers[0]: Split pattern String " "`},
		{split(`{"Regex":"\\p{N}{1,3}"}`, `,"behavior":"Removed","invert":true`), `behavior "Removed" and invert true`},
		{`"pre_tokenizer":{"type":"BertPreTokenizer"},`, `pre_tokenizer: type "BertPreTokenizer"`},
		{`"pre_tokenizer":{"type":"Metaspace","replacement":"_"},`, `pre_tokenizer: Metaspace with replacement "_"`},
		{`"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"last"},`, `prepend_scheme "last"`},
		{`"post_processor":{"type":"RobertaProcessing"},`, `post_processor: type "RobertaProcessing"`},
		{`"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>"}},{"Sequence":{"id":"A"}}],"special_tokens":{}},`, `post_processor.single[0]: special token "<x>" is not defined`},
		{`"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]},`, "post_processor.single[0]"},
		{`"decoder":{"type":"WordPiece"},`, `decoder: type "WordPiece"`},
		{`"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"CTC"}]},`, `decoder.decoders[1]: type "CTC"`},
	} {
		if _, err := Read([]byte(tinyJSON(c.rest))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngot %v, want ...%s...", c.rest, err, c.want)
		}
	}
}

func TestRead_NamesWhatIsWrongInTheModel(t *testing.T) {
	good := tinyJSON(gpt2Level)
	for _, c := range []struct{ old, new, want string }{
		{`"type":"BPE"`, `"type":"Unigram"`, `model: type "Unigram" is not supported`},
		{`"type":"BPE"`, `"type":"BPE","dropout":0.1`, "model: dropout"},
		{`"type":"BPE"`, `"type":"BPE","end_of_word_suffix":"</w>"`, `model: end_of_word_suffix "</w>"`},
		{`"type":"BPE"`, `"type":"BPE","continuing_subword_prefix":"##"`, `model: continuing_subword_prefix "##"`},
		{`"type":"BPE"`, `"type":"BPE","unk_token":"<s>"`, "unk_token or byte_fallback with only 8 of 256 bytes"},
		{`"a b"`, `"a q"`, "model.merges[0]: a part is not in the vocabulary"},
		{`"a b"`, `"b a"`, "model.merges[0]: the merged token is not in the vocabulary"},
		{`"a b"`, `"a b c"`, "model.merges[0]: expected two parts"},
		{`"b c"`, `["b"]`, "model.merges[4]"},
		{`"a":1`, `"a":4000000000`, "model.vocab"},
		{`"a":1`, `"a":900000`, "too large for"},
		{`"a":1`, `"a":-1`, "model.vocab"},
		{`"a":1`, `"\ud800":1`, "model.vocab"},
		{`]}}`, `]}`, "JSON"},
		{`]}}`, ``, "JSON"},
		{`{"added`, "\xff{\"added", "not UTF-8"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		if bad == good {
			t.Fatalf("%s is not in the file", c.old)
		}
		if _, err := Read([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ...%s...", c.new, err, c.want)
		}
	}
}

// truncation and padding in the file change nothing.
func TestRead_IgnoresTruncationAndPadding(t *testing.T) {
	rest := `"truncation":{"max_length":2,"strategy":"LongestFirst"},"padding":{"strategy":{"Fixed":9}},` + gpt2Level
	if got := tiny(t, rest).Encode(nil, []byte("abcabc")); len(got) != 4 {
		t.Errorf("Encode = %v, want four ids", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(tinyJSON(gpt2Level)))
	f.Add([]byte(tinyJSON(`"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},`)))
	f.Add([]byte(tinyJSON(`"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},"decoder":{"type":"Metaspace"},`)))
	f.Add([]byte(strings.Repeat("[", 10000)))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{},"merges":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Read(data)
		if err != nil {
			return
		}
		ids := tok.EncodeSpecial(nil, []byte("the abc <s> ▁x é 12\n"))
		tok.Decode(nil, ids)
		if limit := int64(len(data))*200 + 8<<20; tok.Bytes() > limit {
			t.Errorf("%d bytes of memory for a file of %d", tok.Bytes(), len(data))
		}
	})
}
