package tokenizer

// pairsOf sets merge[i] to the merge of ids[i] and ids[i+1].
func (m *merges) pairsOf(ids []uint32, merge []uint32) {
	for i := 0; i+1 < len(ids); i++ {
		merge[i] = m.get(ids[i], ids[i+1])
	}
}

// mergeShort merges ids in place by always taking the lowest merge, leftmost first, and
// gives the number of ids that remain. merge holds the merges of neighbours and is used
// up. It looks at every pair for each merge: right for words, not for long runs.
func (m *merges) mergeShort(ids []uint32, merge []uint32) int {
	n := len(ids)
	if n < 2 {
		return n
	}
	merge = merge[:n]
	for n > 1 {
		at, low := 0, merge[0]
		for i := 1; i < n-1; i++ {
			if merge[i] < low {
				at, low = i, merge[i]
			}
		}
		if low == none {
			break
		}
		ids[at] = m.result[low]
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(merge[at:n-2], merge[at+1:n-1])
		n--
		if at > 0 {
			merge[at-1] = m.get(ids[at-1], ids[at])
		}
		if at < n-1 {
			merge[at] = m.get(ids[at], ids[at+1])
		}
	}
	return n
}

// symbol is one id of a long word while it is merged.
type symbol struct {
	id         uint32
	end        int32  // end in the text
	prev, next int32  // -1 at the ends
	merge      uint32 // rank of the merge with next
}

// mergeLong does the same with a heap in O(n log n), for symbols whose id and end are set,
// and leaves the symbols that remain at the front. Heap entries are rank<<32 | position;
// one is stale when its symbol is gone or has another merge by now.
func (m *merges) mergeLong(symbols []symbol, heap []uint64) ([]symbol, []uint64) {
	n := len(symbols)
	heap = heap[:0]
	for i := range symbols {
		s := &symbols[i]
		s.prev, s.next, s.merge = int32(i)-1, int32(i)+1, none
		if i == n-1 {
			s.next = -1
			break
		}
		if s.merge = m.get(s.id, symbols[i+1].id); s.merge != none {
			heap = append(heap, uint64(s.merge)<<32|uint64(i))
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		sink(heap, i)
	}
	for len(heap) > 0 {
		top := heap[0]
		at := int32(uint32(top))
		s := &symbols[at]
		if s.merge == none || s.merge != uint32(top>>32) {
			heap = pop(heap)
			continue
		}
		s.id = m.result[s.merge]
		gone := &symbols[s.next]
		s.end, s.next, gone.merge, gone.prev = gone.end, gone.next, none, -2
		s.merge = none
		if s.next >= 0 {
			symbols[s.next].prev = at
			s.merge = m.get(s.id, symbols[s.next].id)
		}
		if s.merge != none {
			heap[0] = uint64(s.merge)<<32 | uint64(at)
			sink(heap, 0)
		} else {
			heap = pop(heap)
		}
		if s.prev >= 0 {
			before := &symbols[s.prev]
			if before.merge = m.get(before.id, s.id); before.merge != none {
				heap = push(heap, uint64(before.merge)<<32|uint64(s.prev))
			}
		}
	}
	out := symbols[:0]
	for i := int32(0); i >= 0 && n > 0; i = symbols[i].next {
		out = append(out, symbols[i])
	}
	return out, heap
}
