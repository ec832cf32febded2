package index

import (
	"github.com/warmroute/warmroute/router/kv"
)

// Overlap sets dst[w] to the blocks of chain that worker w holds: contiguous from
// block 0 on the GPU, then beyond those in CPU memory, then on disk. dst is cleared
// first; workers that it has no room for are left out. It allocates nothing.
func (x *Exact) Overlap(chain []kv.SequenceHash, dst []kv.Overlap) {
	clear(dst)
	x.mu.RLock()
	defer x.mu.RUnlock()
	for at := 0; at < len(chain); {
		r, off, n := x.segment(chain[at:])
		if n == 0 || !x.credit(r, off, n, uint32(at), dst) {
			return
		}
		at += n
	}
}

// segment returns the run and offset at which chain continues and how many blocks
// they share. The last shared block proves those before it.
func (x *Exact) segment(chain []kv.SequenceHash) (r *run, off, n int) {
	p, ok := x.find(chain[0])
	if !ok {
		return nil, 0, 0
	}
	r, off = x.runs.get(p.run()), p.off()
	words := x.hashesOf(r)[off:]
	n = min(len(words), len(chain))
	if words[n-1] == uint64(chain[n-1]) {
		return r, off, n
	}
	lo, hi := 1, n-1 // the first lo blocks are shared, the block at hi is not
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if words[mid] == uint64(chain[mid]) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return r, off, lo
}

// credit adds the n blocks of r from offset off, which are the blocks at.. of the
// chain, to every worker whose overlap reaches them. It reports whether any worker
// holds all of them, that is, whether looking further can help.
func (x *Exact) credit(r *run, off, n int, at uint32, dst []kv.Overlap) (live bool) {
	last := off + n - 1
	for _, word := range x.list(r, kv.TierGPU) {
		v := interval(word)
		w := v.worker()
		if int(w) >= len(dst) {
			break
		}
		if dst[w].GPU != at || v.from() > off || v.last() < off {
			continue
		}
		if v.last() >= last {
			live = true
			dst[w].GPU = at + uint32(n)
		} else {
			dst[w].GPU = at + uint32(v.last()-off+1)
		}
	}
	for t := kv.TierCPU; t < kv.Tiers; t++ {
		for _, word := range x.list(r, t) {
			v := interval(word)
			w := v.worker()
			if int(w) >= len(dst) {
				break
			}
			o := &dst[w]
			reached := o.GPU + o.CPU + o.Disk
			if reached < at || reached >= at+uint32(n) || t == kv.TierCPU && o.Disk > 0 {
				continue
			}
			next := off + int(reached-at)
			if v.from() > next || v.last() < next {
				continue
			}
			add := uint32(min(v.last(), last) - next + 1)
			if t == kv.TierCPU {
				o.CPU += add
			} else {
				o.Disk += add
			}
			live = live || v.last() >= last
		}
	}
	return live
}

// Touch records that w matched chain: the blocks of it that w holds on the GPU are as
// young as if they were stored now. Ages are kept per interval, so one of which less
// than half was matched keeps its age.
func (x *Exact) Touch(w kv.Worker, chain []kv.SequenceHash) {
	ws := x.worker(w)
	if ws == nil {
		return
	}
	now := x.tick()
	x.mu.Lock()
	defer x.mu.Unlock()
	ws.ages.advance(now)
	for at := 0; at < len(chain); {
		r, off, n := x.segment(chain[at:])
		if n == 0 {
			return
		}
		list := x.list(r, kv.TierGPU)
		i := lowerBound(list, w, off)
		if i == len(list) || interval(list[i]).worker() != w || interval(list[i]).from() > off {
			i--
		}
		if i < 0 || interval(list[i]).worker() != w || interval(list[i]).last() < off {
			return
		}
		v := interval(list[i])
		end := min(v.last(), off+n-1)
		if 2*(end-off+1) >= v.len() {
			x.account(kv.TierGPU, v, -1)
			v = newInterval(w, v.from(), v.last(), now)
			list[i] = uint64(v)
			x.account(kv.TierGPU, v, 1)
		}
		if end < off+n-1 {
			return
		}
		at += n
	}
}
