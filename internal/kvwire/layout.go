package kvwire

import (
	"fmt"
	"strings"
)

// Layout is one form in which engine releases encode their events.
type Layout int

// The layouts, by the first release (or month) that sends them.
const (
	LayoutVLLM090      Layout = iota // 2025-04: batch [ts, events]; stored of 6 elements
	LayoutVLLM091                    // 2025-06: + data-parallel rank in the batch
	LayoutVLLM0102                   // 2025-09: + medium
	LayoutVLLM014                    // 2025-12: + LoRA name
	LayoutVLLM0191                   // 2026-02: + extra keys
	LayoutVLLM023Group               // 2026-04, builds before v0.23: + KV cache group
	LayoutVLLM023                    // 2026-05: + spec kind and sliding window, 12 elements
	LayoutVLLM024                    // 2026-06: maps
	LayoutVLLM026                    // 2026-07: + locality
	LayoutSGLang2025                 // 2025-05: stored of 6 elements, signed hashes
	LayoutSGLang                     // 2026-02: + medium
	LayoutSGLangSalt                 // 2026-07: + cache salt of salted stores
	LayoutSGLangMap                  // 2026-09: maps
	layouts
)

var layoutNames = [layouts]string{
	"vllm-0.9.0", "vllm-0.9.1", "vllm-0.10.2", "vllm-0.14", "vllm-0.19.1", "vllm-0.23-group",
	"vllm-0.23", "vllm-0.24", "vllm-0.26", "sglang-2025", "sglang", "sglang-salt", "sglang-map",
}

// Layouts lists every layout, oldest first within an engine.
func Layouts() []Layout {
	l := make([]Layout, layouts)
	for i := range l {
		l[i] = Layout(i)
	}
	return l
}

// String returns the layout's name as flags and test data print it.
func (l Layout) String() string {
	if l < 0 || l >= layouts {
		return fmt.Sprintf("layout(%d)", int(l))
	}
	return layoutNames[l]
}

// ParseLayout returns the layout of that name.
func ParseLayout(name string) (Layout, error) {
	for i, n := range layoutNames {
		if n == name {
			return Layout(i), nil
		}
	}
	return 0, fmt.Errorf("event layout %q is unknown: use one of %s", name, strings.Join(layoutNames[:], ", "))
}

// EncodeOptions are choices that engines leave to their configuration.
type EncodeOptions struct {
	HashBytes   int  // encode hashes as byte strings of this length (vLLM: 32, or 16 with xxh3); 0 = integers
	Signed      bool // encode hashes as signed integers; SGLang layouts always do
	MapEnvelope bool // encode the batch itself as a map, as a vLLM pull request once did
}
