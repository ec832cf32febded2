package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchDirs gives the tokenizers of testdata, or those in the directory that
// WARMROUTE_TOKENIZERS names.
func benchDirs(b *testing.B) []string {
	root := os.Getenv("WARMROUTE_TOKENIZERS")
	if root == "" {
		return families(b)
	}
	files, err := filepath.Glob(filepath.Join(root, "*", "tokenizer.json"))
	if err != nil || len(files) == 0 {
		b.Fatalf("no tokenizers in %s (%v)", root, err)
	}
	for i := range files {
		files[i] = filepath.Dir(files[i])
	}
	return files
}

// benchText is prose in many languages and Go code, or the file that WARMROUTE_BENCH_TEXT
// names.
func benchText(b *testing.B) []byte {
	files := []string{os.Getenv("WARMROUTE_BENCH_TEXT")}
	if files[0] == "" {
		files, _ = filepath.Glob("*.go")
		files = append(files, "testdata/README.md", "testdata/corpus.txt")
	}
	var text []byte
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			b.Fatal(err)
		}
		text = append(text, data...)
	}
	return text
}

func BenchmarkEncode(b *testing.B) {
	text := benchText(b)
	for _, dir := range benchDirs(b) {
		tok := load(b, dir)
		dst := make([]uint32, 0, 2*len(text))
		b.Run(filepath.Base(dir)+"/cold", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				tok.model.newCaches() // as after Load
				b.StartTimer()
				dst = tok.Encode(dst[:0], text)
			}
		})
		b.Run(filepath.Base(dir)+"/warm", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				dst = tok.Encode(dst[:0], text)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, dir := range benchDirs(b) {
		b.Run(filepath.Base(dir), func(b *testing.B) {
			var bytes int64
			for b.Loop() {
				bytes = load(b, dir).Bytes()
			}
			b.ReportMetric(float64(bytes), "B/tokenizer")
		})
	}
}

func BenchmarkHostile(b *testing.B) {
	tok := load(b, "testdata/qwen3")
	for name, unit := range map[string]string{"a": "a", "space": " ", "accent": "e\u0301", "mixed": "aZ 9é中.\n"} {
		text := []byte(strings.Repeat(unit, 1<<20/len(unit)))
		dst := make([]uint32, 0, len(text))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				dst = tok.Encode(dst[:0], text)
			}
		})
	}
}
