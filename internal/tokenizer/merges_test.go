package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// manyMerges is a vocabulary of all texts of a and b up to 14 letters, and the merges that
// append a letter: many parts of a list.
func manyMerges(format string) (vocab string, merges []string) {
	texts := []string{"a", "b"}
	for i := 0; len(texts[i]) < 14; i++ {
		texts = append(texts, texts[i]+"a", texts[i]+"b")
		merges = append(merges, fmt.Sprintf(format, texts[i], "a"), fmt.Sprintf(format, texts[i], "b"))
	}
	var b strings.Builder
	for id, text := range texts {
		fmt.Fprintf(&b, ",%q: %d", text, id)
	}
	return b.String()[1:], merges
}

func readMany(vocab string, merges []string, between, behind string) (*Tokenizer, error) {
	return Read([]byte(`{"model":{"type":"BPE","merges":[` + strings.Join(merges, between) + behind + `],"vocab":{` + vocab + `}}}`))
}

// TestReadMerges_InPartsAsInOne: ranks go on from part to part, in both spellings, with and
// without indentation.
func TestReadMerges_InPartsAsInOne(t *testing.T) {
	for _, format := range []string{`["%s","%s"]`, `"%s %s"`, "[\n        \"%s\",\n        \"%s\"\n      ]"} {
		vocab, merges := manyMerges(format)
		if len(merges) < 3*markEvery || len(merges)%markEvery == 0 {
			t.Fatalf("%d merges are not several parts", len(merges))
		}
		for _, version := range []string{"", `"#version: 0.2"`} {
			list := merges
			if version != "" {
				list = append([]string{version}, merges...)
			}
			tok, err := readMany(vocab, list, ",\n      ", "\n    ")
			if err != nil {
				t.Fatal(err)
			}
			m := tok.model.merges
			if len(m.result) != len(merges) {
				t.Fatalf("%d ranks of %d merges", len(m.result), len(merges))
			}
			for rank := range merges {
				left, right := uint32(rank/2), uint32(rank%2)
				if got := m.get(left, right); got != uint32(rank) || m.result[rank] != uint32(rank+2) {
					t.Fatalf("%s: merge %d has rank %d and result %d", format, rank, got, m.result[rank])
				}
			}
		}
	}
}

// TestReadMerges_SaysTheFirstFault: by its number, whatever part it is in.
func TestReadMerges_SaysTheFirstFault(t *testing.T) {
	vocab, merges := manyMerges(`["%s","%s"]`)
	for _, at := range []int{0, 1, mergeBatch, markEvery - 1, markEvery, markEvery + mergeBatch - 1, 3*markEvery + 5, len(merges) - 1} {
		for fault, want := range map[string]string{`["a","q"]`: "not in the vocabulary", `["a"]`: "expected", `"a b c"`: "two parts", `["b","bbbbbbbbbbbbbb"]`: "the merged token", `{}`: "expected"} {
			bad := slices.Clone(merges)
			bad[at] = fault
			bad[len(bad)-1] = fault
			if _, err := readMany(vocab, bad, ",", ""); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("model.merges[%d]: ", at)) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s as merge %d: %v", fault, at, err)
			}
		}
	}
	for _, n := range []int{1, mergeBatch, markEvery - 1, markEvery, 2 * markEvery, len(merges)} {
		if _, err := readMany(vocab, merges[:n], ",", ""); err != nil {
			t.Errorf("%d merges: %v", n, err)
		}
		if _, err := readMany(vocab, merges[:n], ",", ","); err == nil {
			t.Errorf("%d merges and a comma are read", n)
		}
		if _, err := readMany(vocab, merges[:n], ",", ",,"); err == nil {
			t.Errorf("%d merges and two commas are read", n)
		}
	}
}

// TestReadMerges_RefusesTooMany: before it takes memory for them.
func TestReadMerges_RefusesTooMany(t *testing.T) {
	if _, err := readMerges([]byte("[1]"), make([]int, maxRank/markEvery+1), &vocab{}, false); err == nil || !strings.Contains(err.Error(), "more than 16777214 merges") {
		t.Errorf("%v", err)
	}
}
