package tokenizer

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// families gives the directories of testdata that hold a tokenizer.
func families(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*/tokenizer.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d tokenizers in testdata (%v)", len(files), err)
	}
	dirs := make([]string, len(files))
	for i, f := range files {
		dirs[i] = filepath.Dir(f)
	}
	return dirs
}

func load(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// texts reads texts.jsonl.gz.
func texts(t testing.TB) []string {
	t.Helper()
	f, err := os.Open("testdata/texts.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for d := json.NewDecoder(bufio.NewReader(z)); d.More(); {
		var s string
		if err := d.Decode(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// digest is the hash of golden.txt.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func digestIDs(ids []uint32) string {
	var data []byte
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint32(data, id)
	}
	return digest(data)
}

func TestGolden(t *testing.T) {
	all := texts(t)
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { testGolden(t, load(t, dir), dir, all) })
	}
}

func testGolden(t *testing.T, tok *Tokenizer, dir string, all []string) {
	golden, err := os.ReadFile(filepath.Join(dir, "golden.txt"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	chats := map[string]string{} // count and hash of the ids of a conversation
	check := func(kind, name, text, want, got string) {
		seen[kind]++
		if got != want {
			t.Errorf("%s %s: got %s, want %s for %.300q", kind, name, got, want, text)
		}
	}
	for line := range strings.Lines(string(golden)) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		name, rest, _ := strings.Cut(rest, " ")
		var text string
		if kind == "text" || kind == "special" || kind == "decode" {
			i, err := strconv.Atoi(name)
			if err != nil {
				t.Fatal(err)
			}
			text = all[i]
		}
		switch kind {
		case "text":
			check(kind, name, text, firstTwo(rest), countAndHash(tok.Encode(nil, []byte(text))))
		case "special":
			check(kind, name, text, firstTwo(rest), countAndHash(tok.EncodeSpecial(nil, []byte(text))))
		case "decode":
			// Hugging Face gives text, in which bytes that are none are U+FFFD.
			back := validUTF8(nil, tok.Decode(nil, tok.Encode(nil, []byte(text))))
			check(kind, name, text, firstTwo(rest), strconv.Itoa(len(back))+" "+digest(back))
		case "chat":
			chats[name] = firstTwo(rest)
		case "render":
			if err := json.Unmarshal([]byte(rest), &text); err != nil {
				t.Fatal(err)
			}
			check(kind, name, text, chats[name], countAndHash(tok.Encode(nil, []byte(text))))
		}
	}
	if seen["text"] < 400 || seen["decode"] == 0 || seen["special"] == 0 || len(chats) > 0 && seen["render"] == 0 {
		t.Errorf("golden.txt holds only %v", seen)
	}
}

func firstTwo(fields string) string { return strings.Join(strings.SplitN(fields, " ", 3)[:2], " ") }

func countAndHash(ids []uint32) string { return strconv.Itoa(len(ids)) + " " + digestIDs(ids) }

// The ids of Encode are those of the gaps of Split and of the tokens between them.
func TestSplit_GapsStandAlone(t *testing.T) {
	all := texts(t)
	for _, dir := range families(t) {
		tok := load(t, dir)
		for _, text := range all {
			want := digestIDs(tok.Encode(nil, []byte(text)))
			var ids []uint32
			first := true
			tok.Split([]byte(text), func(gap []byte, id uint32, added bool) bool {
				if added {
					ids = append(ids, id)
				} else {
					ids = tok.EncodeGap(ids, gap, first)
				}
				first = false
				return true
			})
			if got := digestIDs(ids); got != want {
				t.Errorf("%s: %d ids by gaps differ from Encode for %.200q", dir, len(ids), text)
			}
		}
	}
}

// Byte-level tokens hold all bytes of the normalized text.
func TestDecode_ByteLevelLosesNothing(t *testing.T) {
	all := texts(t)
	checked := 0
	for _, dir := range families(t) {
		tok := load(t, dir)
		if !tok.pre.byteLevel || tok.late != nil || !tok.model.allBytes {
			continue
		}
		for _, text := range all {
			var want []byte
			tok.Split([]byte(text), func(gap []byte, _ uint32, added bool) bool {
				if !added {
					gap = tok.normalizer.apply(&scratch{}, gap, false)
				}
				want = append(want, gap...)
				return true
			})
			if got := tok.Decode(nil, tok.Encode(nil, []byte(text))); string(got) != string(want) {
				t.Errorf("%s: Decode(Encode(%.200q)) = %.200q", dir, text, got)
			}
			checked++
		}
	}
	if checked < 1000 {
		t.Errorf("only %d texts were decoded", checked)
	}
}

func TestEncode_InvalidUTF8(t *testing.T) {
	tok := load(t, "testdata/qwen3")
	for _, c := range []struct{ broken, want string }{
		{"a\xffb", "a\uFFFDb"},
		{"\xe4\xb8", "\uFFFD"}, // a maximal part is one replacement
		{"\xe4\xb8a", "\uFFFDa"},
		{"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"}, // a surrogate
		{"\xf0\x9f\x98", "\uFFFD"},
		{"\xf0\x80\x80\x41", "\uFFFD\uFFFD\uFFFDA"}, // overlong
		{"\xf4\x90\x80", "\uFFFD\uFFFD\uFFFD"},      // above U+10FFFF
		{"\xc0\xaf", "\uFFFD\uFFFD"},
		{"\xf0\x9f\x98\x80\x80", "\U0001F600\uFFFD"},
		{"<|im_start|>\xfe", "<|im_start|>\uFFFD"},
	} {
		if got := validUTF8(nil, []byte(c.broken)); string(got) != c.want || !utf8.Valid(got) {
			t.Errorf("validUTF8(%q) = %q, want %q", c.broken, got, c.want)
		}
		if got, want := tok.Encode(nil, []byte(c.broken)), tok.Encode(nil, []byte(c.want)); digestIDs(got) != digestIDs(want) {
			t.Errorf("Encode(%q) = %v, want %v", c.broken, got, want)
		}
	}
}
