//go:build interop

package interop

import (
	"path/filepath"
	"testing"
)

// benched are the models of the published figures; run.sh measures the reference on the
// same ones.
var benched = []string{"qwen3", "llama3_1", "deepseek_v3", "gemma3"}

func benchText(b *testing.B) []byte {
	return read(b, need(b, "WARMROUTE_BENCH_TEXT"))
}

// eachBench runs f for every benched family with its directory and the text.
func eachBench(b *testing.B, f func(b *testing.B, dir string, text []byte)) {
	root := need(b, "WARMROUTE_INTEROP_DIR")
	text := benchText(b)
	for _, family := range benched {
		b.Run(family, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			f(b, filepath.Join(root, family), text)
		})
	}
}

// BenchmarkCold encodes the text with a tokenizer that has seen nothing.
func BenchmarkCold(b *testing.B) {
	eachBench(b, func(b *testing.B, dir string, text []byte) {
		dst := make([]uint32, 0, len(text))
		for range b.N {
			b.StopTimer()
			tok := load(b, dir)
			b.StartTimer()
			dst = tok.Encode(dst[:0], text)
		}
	})
}

// BenchmarkWarm encodes the text again and again.
func BenchmarkWarm(b *testing.B) {
	eachBench(b, func(b *testing.B, dir string, text []byte) {
		tok := load(b, dir)
		dst := tok.Encode(make([]uint32, 0, len(text)), text)
		for b.Loop() {
			dst = tok.Encode(dst[:0], text)
		}
	})
}

// BenchmarkMessageWarm encodes 2 KB, the size of a message.
func BenchmarkMessageWarm(b *testing.B) {
	eachBench(b, func(b *testing.B, dir string, text []byte) {
		text = text[1000:3048]
		b.SetBytes(int64(len(text)))
		tok := load(b, dir)
		dst := tok.Encode(make([]uint32, 0, len(text)), text)
		for b.Loop() {
			dst = tok.Encode(dst[:0], text)
		}
	})
}

// BenchmarkLoad reads the files of a model.
func BenchmarkLoad(b *testing.B) {
	root := need(b, "WARMROUTE_INTEROP_DIR")
	for _, family := range benched {
		b.Run(family, func(b *testing.B) {
			for b.Loop() {
				load(b, filepath.Join(root, family))
			}
		})
	}
}
