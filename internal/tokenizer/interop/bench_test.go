//go:build interop

package interop

import (
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
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

// processor is the processor time of this process so far.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// report shows MB/s of processor time, what bench.py shows for the reference.
func report(b *testing.B, size int, spent time.Duration) {
	b.ReportMetric(float64(size)*float64(b.N)/1e6/spent.Seconds(), "cpu-MB/s")
}

// BenchmarkCold encodes the text with a tokenizer that has seen nothing.
func BenchmarkCold(b *testing.B) {
	eachBench(b, func(b *testing.B, dir string, text []byte) {
		dst := make([]uint32, 0, len(text))
		var spent time.Duration
		for range b.N {
			b.StopTimer()
			tok := load(b, dir)
			runtime.GC() // what loading left is no part of encoding
			start := processor(b)
			b.StartTimer()
			dst = tok.Encode(dst[:0], text)
			spent += processor(b) - start
		}
		report(b, len(text), spent)
	})
}

// BenchmarkWarm encodes the text again and again.
func BenchmarkWarm(b *testing.B) {
	eachBench(b, func(b *testing.B, dir string, text []byte) {
		tok := load(b, dir)
		dst := tok.Encode(make([]uint32, 0, len(text)), text)
		start := processor(b)
		for b.Loop() {
			dst = tok.Encode(dst[:0], text)
		}
		report(b, len(text), processor(b)-start)
	})
}

// BenchmarkMessageWarm encodes 2 KB, the size of a message.
func BenchmarkMessageWarm(b *testing.B) {
	eachBench(b, func(b *testing.B, dir string, text []byte) {
		text = text[1000:3048]
		b.SetBytes(int64(len(text)))
		tok := load(b, dir)
		dst := tok.Encode(make([]uint32, 0, len(text)), text)
		start := processor(b)
		for b.Loop() {
			dst = tok.Encode(dst[:0], text)
		}
		report(b, len(text), processor(b)-start)
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
