package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var safeCutBits = []string{
	"a", "Z", "word", " ", "  ", "\n", "\n\n", "\r\n", "\t", "1", "12345", "!", "//", "'s", "'LL", "'", "é", "e\u0301", "你", "你好，世界。", "ガ。", "か\u3099、",
	"🙂", "\u2581", "\u00a0", "\u3000", "\u0301", "\u1161", "\u200b", "\x01", "word\nword", "x\ny", "{\n", "}\n{", "\": [", "_", "A1b2", "<s>", "</s>", "<lr>", " <l>", "the end", "\n/", "。\n你", "ſ",
}

// TestSafeCut_ChangesNothing: texts cut at every safe place, or at some of them, have the
// ids of the whole, in every family and with its added tokens in them.
func TestSafeCut_ChangesNothing(t *testing.T) {
	dirs, err := filepath.Glob("testdata/*/tokenizer.json")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("%d families, %v", len(dirs), err)
	}
	for _, path := range dirs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Read(raw)
		if err != nil {
			t.Fatal(err)
		}
		cuts, gaps := compareCuts(t, path, tok, 5000)
		if t.Logf("%s: %d cuts in %d gaps", path, cuts, gaps); cuts < gaps {
			t.Errorf("%s: only %d cuts in %d gaps", path, cuts, gaps)
		}
	}
}

// TestSafeCut_AsksTheExpressions: the same with pre-tokenizers that none of the families has.
// Where no expression ends words there is no safe place.
func TestSafeCut_AsksTheExpressions(t *testing.T) {
	const bytes = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":%t}`
	f := func(family, pre string, safe bool) {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join("testdata", family, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		file := map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &file); err != nil {
			t.Fatal(err)
		}
		file["pre_tokenizer"] = json.RawMessage(pre)
		if family == "gemma" { // one of its added tokens is looked for behind the normalizer
			file["added_tokens"] = json.RawMessage(strings.Replace(string(file["added_tokens"]), `"normalized":false`, `"normalized":true`, 1))
		}
		raw, err = json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Read(raw)
		if err != nil {
			t.Fatal(err)
		}
		if cuts, gaps := compareCuts(t, pre, tok, 5000); safe && cuts < gaps || !safe && cuts > 0 {
			t.Errorf("%s: %d cuts in %d gaps", pre, cuts, gaps)
		}
	}
	for _, family := range []string{"llama3", "flags"} {
		f(family, fmt.Sprintf(bytes, true), true)
		f(family, fmt.Sprintf(`{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},`+bytes+`]}`, true), true)
		f(family, fmt.Sprintf(bytes, false), false)
		f(family, fmt.Sprintf(`{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},`+bytes+`]}`, false), false)
	}
	f("mistral_v3", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, true)
	f("gemma", "null", true)
	f("mistral_v3", `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true}]}`, true)
}

// compareCuts compares rounds random texts in parts with the same texts whole.
func compareCuts(t *testing.T, name string, tok *Tokenizer, rounds int) (cuts, gaps int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	bits := slices.Clone(safeCutBits)
	for _, m := range []*matcher{tok.raw, tok.late} {
		for k := 0; m != nil && k < 20; k++ {
			bits = append(bits, string(m.tokens[r.IntN(len(m.tokens))].text))
		}
	}
	for range rounds {
		var b strings.Builder
		for range 1 + r.IntN(20) {
			b.WriteString(bits[r.IntN(len(bits))])
		}
		every := r.IntN(2) == 0
		tok.Split([]byte(b.String()), func(gap []byte, _ uint32, added bool) bool {
			if added {
				return true
			}
			gaps++
			for _, first := range []bool{true, false} {
				want := tok.EncodeGap(nil, gap, first)
				var got []uint32
				rest := gap
				for inside := false; ; inside = true {
					from := 1
					if !every {
						from += r.IntN(8)
					}
					n := tok.SafeCut(rest, from)
					part := rest
					if n > 0 {
						part = rest[:n]
						cuts++
					}
					if inside {
						got = tok.EncodeInside(got, part)
					} else {
						got = tok.EncodeGap(got, part, first)
					}
					if n < 0 {
						break
					}
					rest = rest[n:]
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%s: %q: %v, want %v", name, gap, got, want)
				}
			}
			return true
		})
	}
	return cuts, gaps
}

// TestSafeCut_IsFoundSoon: long texts that people send have a safe place every few bytes,
// with line breaks or without.
func TestSafeCut_IsFoundSoon(t *testing.T) {
	for _, family := range []string{"qwen3", "llama3", "gptoss", "deepseek_v3", "tekken", "gemma", "llama2", "mistral_v3"} {
		tok, err := Load(filepath.Join("testdata", family))
		if err != nil {
			t.Fatal(err)
		}
		for name, line := range map[string]string{
			"JSON lines":    "{\"id\": 12, \"n\": [1, 2]}\n",
			"minified JSON": `{"id":12,"names":["a","b"]},`,
			"prose":         "The quick brown fox jumps over the lazy dog. ",
			"log":           "[12:30:00] GET /index.html 200\n",
			"base64":        "aGVsbG8gd29ybGQhIDEyMw",
			"Chinese":       "今天天气很好，我们去公园。",
			"Korean":        "안녕하세요 여러분 ",
			"Arabic":        "مرحبا بالعالم ",
		} {
			text := []byte(strings.Repeat(line, 200))
			for at := 0; at < len(text)-200; {
				n := tok.SafeCut(text[at:], 1)
				if n < 0 || n > 100 {
					t.Errorf("%s, %s: no place within %d bytes of %q", family, name, n, text[at:at+60])
					break
				}
				at += n
			}
		}
	}
}
