package kv

import (
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

func TestMMHash_CutsDigestsAndHashesNames(t *testing.T) {
	f := func(id string, want uint64) {
		t.Helper()
		if got := MMHash(id); got != want {
			t.Errorf("MMHash(%q) = %x, want %x", id, got, want)
		}
	}
	f("0123456789abcdef"+strings.Repeat("0", 48), 0x0123456789abcdef)
	f("FFFFFFFFFFFFFFFF"+strings.Repeat("a", 48), 0xffffffffffffffff)
	f("0123456789abcdef", xxh3.HashString("0123456789abcdef")) // too short for a digest
	for _, c := range []string{"\x10", "g", "@", "`", ":", "/", "-"} {
		id := c + strings.Repeat("0", 63)
		f(id, xxh3.HashString(id))
	}
	f("my-image", xxh3.HashString("my-image"))
	f("", xxh3.HashString(""))
	if n := testing.AllocsPerRun(10, func() { MMHash("my-image") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
