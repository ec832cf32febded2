//go:build !race

package tokenizer

import (
	"strings"
	"testing"
)

// Under the race detector a sync.Pool forgets values at random.
func TestEncode_AllocatesNothingBeyondTheOutput(t *testing.T) {
	text := []byte(strings.Repeat("The quick brown fox, 123 times: 中文字符和日本語テキスト привет e\u0301!\n", 40))
	for _, dir := range families(t) {
		tok := load(t, dir)
		dst := tok.Encode(make([]uint32, 0, 2*len(text)), text)
		n := testing.AllocsPerRun(20, func() {
			dst = tok.Encode(dst[:0], text)
			dst = tok.EncodeSpecial(dst[:0], text[:100])
			dst = tok.EncodeGap(dst[:0], text, true)
		})
		if n > 0 {
			t.Errorf("%s: %v allocations", dir, n)
		}
	}
}
