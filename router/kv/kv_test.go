package kv

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"
)

func tokenRange(from, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(from + i)
	}
	return t
}

// TestHash_GoldenVectors pins the public vectors of Dynamo's hash rule.
func TestHash_GoldenVectors(t *testing.T) {
	f := func(name string, got, want uint64) {
		t.Helper()
		if got != want {
			t.Errorf("%s = %d, want %d", name, got, want)
		}
	}
	f("l0", uint64(HashBlock(tokenRange(0, 16), nil, BaseSeed)), 15310707395893867146)
	f("l1", uint64(HashBlock(tokenRange(16, 16), nil, BaseSeed)), 15292316782987903195)
	f("l2", uint64(HashBlock(tokenRange(32, 16), nil, BaseSeed)), 5532946206955930018)

	chain := AppendSequenceHashes(nil, tokenRange(0, 48), 16, BaseSeed)
	f("s0", uint64(chain[0]), 15310707395893867146)
	f("s1", uint64(chain[1]), 13769157705258532664)
	f("s2", uint64(chain[2]), 11879827756109914528)

	lora := Namespace{LoRA: "my-lora"}
	f("lora seed", lora.Seed(), 12827409268353072861)
	f("lora l0", uint64(HashBlock(tokenRange(0, 16), nil, lora.Seed())), 7774427462321301335)
	salt := Namespace{Salt: "tenant-a"}
	f("salt seed", salt.Seed(), 1948188790972764086)
	f("salt l0", uint64(HashBlock(tokenRange(0, 16), nil, salt.Seed())), 2130915519417463704)
	f("mm l0", uint64(HashBlock(tokenRange(0, 16), []uint64{7}, BaseSeed)), 7781140870316330137)

	repeat := func(id uint32, n int) []uint32 {
		r := make([]uint32, n)
		for i := range r {
			r[i] = id
		}
		return r
	}
	f("mooncake 46 x64", uint64(HashBlock(repeat(46, 64), nil, BaseSeed)), 4218722068121879188)
	f("mooncake 46 x128", uint64(HashBlock(repeat(46, 128), nil, BaseSeed)), 1075869293209628459)
	f("mooncake 46 x512", uint64(HashBlock(repeat(46, 512), nil, BaseSeed)), 6010885096840287250)
}

func TestHash_WholeBlocksOnly(t *testing.T) {
	f := func(tokens, blockSize, want int) {
		t.Helper()
		if got := len(AppendSequenceHashes(nil, tokenRange(0, tokens), blockSize, BaseSeed)); got != want {
			t.Errorf("%d tokens in blocks of %d: %d hashes, want %d", tokens, blockSize, got, want)
		}
	}
	f(0, 16, 0)
	f(15, 16, 0)
	f(16, 16, 1)
	f(47, 16, 2)
	f(3, 1, 3)
}

// TestFC57_TokensKeepTheirWidth: ids that agree in their low byte are different blocks.
func TestFC57_TokensKeepTheirWidth(t *testing.T) {
	a := HashBlock([]uint32{65, 65, 65, 65}, nil, BaseSeed)
	b := HashBlock([]uint32{321, 321, 321, 321}, nil, BaseSeed)
	if a == b {
		t.Fatal("token 65 and token 321 share a block hash")
	}
}

func TestNamespace_DomainsAreSeparate(t *testing.T) {
	seeds := map[uint64]Namespace{}
	for _, n := range []Namespace{{}, {LoRA: "x"}, {Salt: "x"}, {LoRA: "x", Salt: "x"}, {LoRA: "y", Salt: "x"}} {
		if o, ok := seeds[n.Seed()]; ok {
			t.Errorf("namespaces %+v and %+v share a seed", o, n)
		}
		seeds[n.Seed()] = n
	}
	if (Namespace{}).TextSeed("a") == (Namespace{}).TextSeed("b") {
		t.Error("two models share text blocks")
	}
}

func TestTextHashes_ChainBlocksOf256Bytes(t *testing.T) {
	text := make([]byte, 3*TextBlockBytes+5)
	for i := range text {
		text[i] = byte(i * 7)
	}
	got := AppendTextHashes(nil, text, 99)
	var want []SequenceHash
	var buf [16]byte
	for i := range 3 {
		b := xxh3.HashSeed(text[i*256:(i+1)*256], 99)
		if i == 0 {
			want = append(want, SequenceHash(b))
			continue
		}
		binary.LittleEndian.PutUint64(buf[:8], uint64(want[i-1]))
		binary.LittleEndian.PutUint64(buf[8:], b)
		want = append(want, SequenceHash(xxh3.HashSeed(buf[:], BaseSeed)))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestPrompt_ChainIsHashedOncePerBlockSize(t *testing.T) {
	p := &Prompt{Tokens: tokenRange(0, 100), TokenCount: 100}
	a, b := p.Chain(16), p.Chain(16)
	if len(a) != 6 || &a[0] != &b[0] {
		t.Fatalf("chain of 16: %d hashes, shared %v", len(a), &a[0] == &b[0])
	}
	if got := p.Chain(64); len(got) != 1 {
		t.Fatalf("chain of 64 has %d hashes, want 1", len(got))
	}
	for _, size := range []int{0, -1, 101} {
		if got := p.Chain(size); got != nil {
			t.Errorf("chain of %d = %v, want nil", size, got)
		}
	}
}

// TestChains_GoOnFromACommonPrefix: a prompt that takes over the chains of one that begins
// alike has the hashes that it would have alone, for every split and block size.
func TestChains_GoOnFromACommonPrefix(t *testing.T) {
	old := Prompt{Tokens: tokenRange(0, 200), Chains: new(Chains)}
	for _, size := range []int{16, 64} {
		old.Chain(size)
	}
	for common := 0; common <= 200; common += 7 {
		tokens := append(tokenRange(0, common), tokenRange(900, 150)...)
		next := Prompt{Tokens: tokens, Chains: old.Chains.Prefix(common)}
		for _, size := range []int{16, 32, 64} {
			if got, want := next.Chain(size), AppendSequenceHashes(nil, tokens, size, BaseSeed); !slices.Equal(got, want) {
				t.Fatalf("%d tokens in common, blocks of %d: %x, want %x", common, size, got, want)
			}
		}
		if got, want := next.Chains.Bytes(), int64(8*(len(tokens)/16+len(tokens)/32+len(tokens)/64)); got != want {
			t.Errorf("%d bytes, want %d", got, want)
		}
	}
	if got := old.Chain(16); !slices.Equal(got, AppendSequenceHashes(nil, old.Tokens, 16, BaseSeed)) {
		t.Error("the old prompt's hashes changed")
	}
}

func TestPrompt_TextTokens(t *testing.T) {
	p := &Prompt{TokenCount: 100, BytesPerToken: 4}
	if got := p.TextTokens(1); got != 64 {
		t.Errorf("one block is %d tokens, want 64", got)
	}
	if got := p.TextTokens(5); got != 100 {
		t.Errorf("five blocks are %d tokens, want the prompt's 100", got)
	}
}

func TestWorkers_NumbersAreDenseAndUsedAgain(t *testing.T) {
	var ws Workers
	a, b := ws.Hold(WorkerRank{"a", 0}), ws.Hold(WorkerRank{"a", 1})
	if a != 0 || b != 1 || ws.Hold(WorkerRank{"a", 0}) != a {
		t.Fatalf("a=%d b=%d", a, b)
	}
	ws.Release(a)
	if _, ok := ws.Lookup(WorkerRank{"a", 0}); !ok {
		t.Fatal("rank is gone while it has a holder")
	}
	ws.Release(a)
	if _, ok := ws.Lookup(WorkerRank{"a", 0}); ok {
		t.Fatal("rank stays after its last release")
	}
	if c := ws.Hold(WorkerRank{"c", 0}); c != a || ws.Rank(c).ID != "c" || ws.Len() != 2 {
		t.Fatalf("c=%d rank=%v len=%d", c, ws.Rank(c), ws.Len())
	}
	defer func() {
		if recover() == nil {
			t.Error("releasing an unheld number did not panic")
		}
	}()
	ws.Release(a)
	ws.Release(a)
}

func TestWorkers_ConcurrentHoldersAgree(t *testing.T) {
	var ws Workers
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				r := WorkerRank{"w", i % 7}
				w := ws.Hold(r)
				if got := ws.Rank(w); got != r {
					t.Errorf("worker %d is %v, want %v", w, got, r)
				}
				ws.Release(w)
			}
		})
	}
	wg.Wait()
	if ws.Len() > 7 {
		t.Errorf("%d numbers for 7 ranks", ws.Len())
	}
}

func TestHashing_AllocatesNothing(t *testing.T) {
	tokens := tokenRange(0, 4096)
	dst := make([]SequenceHash, 0, 256)
	if n := testing.AllocsPerRun(20, func() { dst = AppendSequenceHashes(dst[:0], tokens, 16, BaseSeed) }); n != 0 {
		t.Errorf("%v allocations per chain of 256 blocks", n)
	}
}

// BenchmarkHash measures a 131,072-token prompt from ids to sequence hashes. Budget:
// 0.3 ms at block 16.
func BenchmarkHash(b *testing.B) {
	tokens := tokenRange(0, 131072)
	for _, size := range []int{16, 64} {
		b.Run(fmt.Sprintf("tokens=131072/block=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			dst := make([]SequenceHash, 0, len(tokens)/size)
			for b.Loop() {
				dst = AppendSequenceHashes(dst[:0], tokens, size, BaseSeed)
			}
		})
	}
}
