package tokenizer

// symbols are the ids of a text, not yet or already merged, and where each ends in the text.
type symbols struct {
	ids  []uint32
	ends []int32
}

func (s *symbols) reset() { s.ids, s.ends = s.ids[:0], s.ends[:0] }

func (s *symbols) add(id uint32, end int32) {
	s.ids, s.ends = append(s.ids, id), append(s.ends, end)
}

// begin gives where symbol i begins.
func (s *symbols) begin(i int) int32 {
	if i == 0 {
		return 0
	}
	return s.ends[i-1]
}

// pairsOf sets merge[i] to the merge of ids[i] and ids[i+1].
func (m *merges) pairsOf(ids []uint32, merge []uint32) {
	for i := 0; i+1 < len(ids); i++ {
		merge[i] = m.get(ids[i], ids[i+1])
	}
}

// mergeShort merges ids in place by always taking the lowest merge, leftmost first, and
// gives the number of ids that remain. merge holds the merges of neighbours and is used
// up; ends may be nil. It looks at every pair for each merge: right for words, not for long
// runs.
func (m *merges) mergeShort(ids, merge []uint32, ends []int32) int {
	n := len(ids)
	if n < 2 {
		return n
	}
	merge = merge[:n]
	for n > 1 {
		at, low := 0, merge[0]
		for i, rank := range merge[:n-1] {
			if rank < low {
				at, low = i, rank
			}
		}
		if low == none {
			break
		}
		ids[at] = m.result[low]
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(merge[at:n-2], merge[at+1:n-1])
		if ends != nil {
			copy(ends[at:n-1], ends[at+1:n])
		}
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

// node links a symbol with its neighbours while a long text is merged.
type node struct {
	prev, next int32  // -1 at the ends
	merge      uint32 // rank of the merge with next
}

// mergeLong merges s with a heap in O(n log n). Heap entries are rank<<32 | position; one is
// stale when its symbol is gone or has another merge by now.
func (m *merges) mergeLong(s *symbols, nodes []node, heap []uint64) ([]node, []uint64) {
	nodes, heap = nodes[:0], heap[:0]
	for i, id := range s.ids {
		n := node{int32(i) - 1, int32(i) + 1, none}
		if i+1 == len(s.ids) {
			n.next = -1
		} else if n.merge = m.get(id, s.ids[i+1]); n.merge != none {
			heap = append(heap, uint64(n.merge)<<32|uint64(i))
		}
		nodes = append(nodes, n)
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		sink(heap, i)
	}
	for len(heap) > 0 {
		at := int32(uint32(heap[0]))
		n := &nodes[at]
		if n.merge == none || n.merge != uint32(heap[0]>>32) {
			heap = pop(heap)
			continue
		}
		s.ids[at] = m.result[n.merge]
		gone := &nodes[n.next]
		s.ends[at] = s.ends[n.next]
		n.next, gone.merge = gone.next, none
		n.merge = none
		if n.next >= 0 {
			nodes[n.next].prev = at
			n.merge = m.get(s.ids[at], s.ids[n.next])
		}
		if n.merge != none {
			heap[0] = uint64(n.merge)<<32 | uint64(at)
			sink(heap, 0)
		} else {
			heap = pop(heap)
		}
		if n.prev >= 0 {
			before := &nodes[n.prev]
			if before.merge = m.get(s.ids[n.prev], s.ids[at]); before.merge != none {
				heap = push(heap, uint64(before.merge)<<32|uint64(n.prev))
			}
		}
	}
	s.compact(nodes)
	return nodes, heap
}

// compact moves the symbols that remain to the front.
func (s *symbols) compact(nodes []node) {
	kept := 0
	for i := int32(0); i >= 0 && len(nodes) > 0; i = nodes[i].next {
		s.ids[kept], s.ends[kept] = s.ids[i], s.ends[i]
		kept++
	}
	s.ids, s.ends = s.ids[:kept], s.ends[:kept]
}
