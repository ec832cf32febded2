package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

// BenchmarkRequest measures what a 300 KB chat costs before it reaches the engine: the
// body's JSON, the template and the tokens.
func BenchmarkRequest(b *testing.B) {
	b.ReportAllocs()
	messages := make([]map[string]string, 30)
	for i := range messages {
		messages[i] = map[string]string{"role": []string{"user", "assistant"}[i%2], "content": strings.Repeat("ten bytes ", 1000)}
	}
	body, err := json.Marshal(map[string]any{"model": "sim", "messages": messages})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		var q genRequest
		if err := json.Unmarshal(body, &q); err != nil {
			b.Fatal(err)
		}
		if n := len(q.render(VLLM, false).tokens); n < 70_000 {
			b.Fatal(n)
		}
	}
}
