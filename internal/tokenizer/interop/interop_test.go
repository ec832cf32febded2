//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/tokenizer"
)

// families are the models that run.sh fetches; none may be missing.
var families = []string{
	"qwen3", "qwen3_5", "llama2", "llama3", "llama3_1", "deepseek_v3", "gemma3", "gptoss", "gpt4o", "tekken",
	"mistral_v3",
}

const (
	minTexts = 400
	minChats = 40
)

// need returns a required environment variable.
func need(t testing.TB, key string) string {
	t.Helper()
	v := os.Getenv(key)
	if v == "" {
		t.Fatalf("%s is not set: run internal/tokenizer/interop/run.sh", key)
	}
	return v
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// lines returns the lines of a file without their ends.
func lines(t testing.TB, path string) []string {
	t.Helper()
	text := strings.TrimSuffix(string(read(t, path)), "\n")
	return strings.Split(text, "\n")
}

func load(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatalf("load %s: %v", filepath.Base(dir), err)
	}
	return tok
}

// each runs f for every family, at most GOMAXPROCS at a time.
func each(t *testing.T, f func(t *testing.T, dir string)) {
	root := need(t, "WARMROUTE_INTEROP_DIR")
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			f(t, filepath.Join(root, family))
		})
	}
}

// digest is the hash of goldens: the first 8 bytes of SHA-256, in hex.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func littleEndian(dst []byte, ids []uint32) []byte {
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint32(dst, id)
	}
	return dst
}

func sharedTexts(t *testing.T) []string {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "testdata", "texts.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for dec := json.NewDecoder(bufio.NewReader(z)); dec.More(); {
		var s string
		if err := dec.Decode(&s); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, s)
	}
	return texts
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTexts_Equal compares ids and decoded text of the shared texts and of the rendered
// conversations.
func TestTexts_Equal(t *testing.T) {
	texts := sharedTexts(t)
	each(t, func(t *testing.T, dir string) {
		tok := load(t, dir)
		var nTexts, nChats, bad int
		chats := map[string]string{} // expected hash of ids by name
		fail := func(kind, name, text string, want []string, got []uint32) {
			if bad++; bad <= 5 {
				t.Errorf("%s %s: want %v, got %d %s %v for %.300q", kind, name, want, len(got),
					digest(littleEndian(nil, got)), got[:min(len(got), 40)], text)
			}
		}
		check := func(kind, name, text string, want []string, got []uint32) {
			if strconv.Itoa(len(got)) != want[0] || digest(littleEndian(nil, got)) != want[1] {
				fail(kind, name, text, want, got)
			}
		}
		for _, line := range lines(t, filepath.Join(dir, "golden.txt")) {
			f := strings.SplitN(line, " ", 3)
			switch f[0] {
			case "text":
				text := texts[number(t, f[1])]
				check(f[0], f[1], text, strings.Fields(f[2]), tok.Encode(nil, []byte(text)))
				nTexts++
			case "special":
				text := texts[number(t, f[1])]
				check(f[0], f[1], text, strings.Fields(f[2]), tok.EncodeSpecial(nil, []byte(text)))
			case "decode":
				text := texts[number(t, f[1])]
				back := tok.Decode(nil, tok.Encode(nil, []byte(text)))
				if want := strings.Fields(f[2]); digest(back) != want[1] {
					if bad++; bad <= 5 {
						t.Errorf("decode %s: want %v, got %d %.300q for %.300q", f[1], want, len(back), back, text)
					}
				}
			case "chat":
				chats[f[1]] = f[2]
			case "render":
				var text string
				if err := json.Unmarshal([]byte(f[2]), &text); err != nil {
					t.Fatal(err)
				}
				check(f[0], f[1], text, strings.Fields(chats[f[1]]), tok.Encode(nil, []byte(text)))
				nChats++
			}
		}
		if nTexts < minTexts || nChats < minChats {
			t.Fatalf("%d texts and %d conversations, want at least %d and %d", nTexts, nChats, minTexts, minChats)
		}
		t.Logf("%s: %d texts, %d rendered conversations, %d differ", filepath.Base(dir), nTexts, nChats, bad)
	})
}

// TestRandom_Equal compares the random strings, chunk by chunk.
func TestRandom_Equal(t *testing.T) {
	data := read(t, filepath.Join(need(t, "WARMROUTE_INTEROP_DIR"), "random.bin"))
	each(t, func(t *testing.T, dir string) { compare(t, dir, "random", randomChunks(data)) })
}

// TestCodePoints_Equal compares every code point, alone and among others.
func TestCodePoints_Equal(t *testing.T) {
	chunks := codePointChunks()
	each(t, func(t *testing.T, dir string) { compare(t, dir, "codepoints", chunks) })
}

// randomChunks cuts random.bin into chunks of 1,000 strings.
func randomChunks(data []byte) [][][]byte {
	var all [][]byte
	for len(data) > 0 {
		n := 4 + int(binary.LittleEndian.Uint32(data))
		all = append(all, data[4:n:n])
		data = data[n:]
	}
	return slices.Collect(slices.Chunk(all, 1000))
}

// codePointChunks is code_point_chunks of golden.py: 512 code points a chunk.
func codePointChunks() [][][]byte {
	var all [][]byte
	for c := rune(1); c <= 0x31FFF; c++ {
		if c >= 0xD800 && c <= 0xDFFF {
			continue
		}
		s := string(c)
		all = append(all, []byte(s), []byte("a"+s+"b "+s+s+"1"+s+" \n"+s))
	}
	return slices.Collect(slices.Chunk(all, 2*512))
}

func compare(t *testing.T, dir, set string, chunks [][][]byte) {
	tok := load(t, dir)
	want := lines(t, filepath.Join(dir, set+".txt"))
	if len(want) != len(chunks) {
		t.Fatalf("%s has %d chunks, the golden %d", set, len(chunks), len(want))
	}
	var ids []uint32
	var buf []byte
	var count int
	bad := []int{}
	for i, chunk := range chunks {
		buf = buf[:0]
		for _, s := range chunk {
			ids = tok.Encode(ids[:0], s)
			buf = binary.LittleEndian.AppendUint32(buf, uint32(len(ids)))
			buf = littleEndian(buf, ids)
		}
		count += len(chunk)
		if digest(buf) != want[i] {
			bad = append(bad, i)
		}
	}
	t.Logf("%s: %d strings of %s in %d chunks, %d chunks differ", filepath.Base(dir), count, set, len(chunks), len(bad))
	if len(bad) > 0 {
		t.Errorf("%d of %d chunks differ, the first is %d", len(bad), len(chunks), bad[0])
		explain(t, tok, dir, set, bad[0], chunks[bad[0]])
	}
}

// explain asks the reference for the ids of every string of one chunk and shows the
// first three that differ.
func explain(t *testing.T, tok *tokenizer.Tokenizer, dir, set string, chunk int, strs [][]byte) {
	cmd := exec.Command(need(t, "WARMROUTE_PYTHON"), "golden.py", "explain", filepath.Dir(dir), filepath.Base(dir),
		set, strconv.Itoa(chunk))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("explain: %v", err)
	}
	rows := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if len(rows) != len(strs) {
		t.Fatalf("explain: %d rows for %d strings", len(rows), len(strs))
	}
	shown := 0
	for i, row := range rows {
		var want []uint32
		if err := json.Unmarshal(row, &want); err != nil {
			t.Fatal(err)
		}
		got := tok.Encode(nil, strs[i])
		if !slices.Equal(got, want) && shown < 3 {
			t.Errorf("%s %d/%d %+q\nwant %v\ngot  %v", set, chunk, i, strs[i], want, got)
			shown++
		}
	}
	if shown == 0 {
		t.Errorf("no string of the chunk differs when encoded alone")
	}
}
