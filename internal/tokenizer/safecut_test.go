package tokenizer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSafeCut_ChangesNothing: texts cut at every safe place have the ids of the whole, in
// every family.
func TestSafeCut_ChangesNothing(t *testing.T) {
	dirs, err := filepath.Glob("testdata/*/tokenizer.json")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("%d families, %v", len(dirs), err)
	}
	bits := []string{"a", "Z", "word", " ", "  ", "\n", "\n\n", "\r\n", "\t", "1", "12345", "!", "//", "'s", "é", "e\u0301", "你", "🙂", "\u2581", "\u00a0", "\u0301", "word\nword", "x\ny", "{\n", "<s>", "</s>"}
	for _, path := range dirs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Read(raw)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		cuts, places := 0, 0
		for range 5000 {
			var b strings.Builder
			for range 1 + r.IntN(20) {
				b.WriteString(bits[r.IntN(len(bits))])
			}
			tok.Split([]byte(b.String()), func(gap []byte, _ uint32, added bool) bool {
				if added {
					return true
				}
				places += strings.Count(string(gap), "word\nword")
				for _, first := range []bool{true, false} {
					want := tok.EncodeGap(nil, gap, first)
					var got []uint32
					rest := gap
					for inside := false; ; inside = true {
						n := tok.SafeCut(rest, 1)
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
						t.Fatalf("%s: %q: %v, want %v", path, gap, got, want)
					}
				}
				return true
			})
		}
		// Gemma's line breaks are added tokens: no gap holds one.
		if t.Logf("%s: %d cuts", path, cuts); cuts < 2*places {
			t.Errorf("%s: only %d cuts at %d places", path, cuts, places)
		}
	}
}
