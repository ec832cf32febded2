package tokenizer

// A binary heap of uint64, lowest first, without the interface calls of container/heap.

func push(h []uint64, v uint64) []uint64 {
	h = append(h, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	return h
}

func pop(h []uint64) []uint64 {
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	if n > 1 {
		sink(h, 0)
	}
	return h
}

// sink moves h[i] down to its place.
func sink(h []uint64, i int) {
	v := h[i]
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1] < h[down] {
			down++
		}
		if v <= h[down] {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = v
}
