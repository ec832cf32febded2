package prompt

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/tokenizer"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	// pieceBytes is about how long a segment is where no added token ends it sooner.
	pieceBytes = 4 << 10
	// longBytes is how long it is at most: what has no place for a cut is one word, and the
	// slowest words take a second a megabyte. A longer one ends the identity.
	longBytes = 16 << 10
	// placeEvery is how many bytes lie at least between two prefixes that the memo knows,
	// and placeShare the share of the text before them: a long prompt has few places.
	placeEvery = 256
	placeShare = 256
	// keepBytes is the shortest segment whose tokens are worth a place in the cache:
	// shorter ones are tokenised as fast as they are found there.
	keepBytes = 64
	// clockBytes is after how many bytes the clock is looked at; segmentBytes is what a
	// segment of any length counts beside its own.
	clockBytes   = 8 << 10
	segmentBytes = 64
	// keepSegments bounds the segments that a job keeps room for.
	keepSegments = 8 << 10
	// aheadBytes is for how many bytes of text room for tokens is made at once.
	aheadBytes = 1 << 20
)

// segments tokenises rendered prompts and pays once for what it has seen: by the memo for
// the prefix of a known prompt, by the cache for a segment that stands somewhere else.
// Safe for concurrent use.
type segments struct {
	seeds   [2]maphash.Seed
	memo    *memo
	metrics *metrics
	now     func() time.Time
	jobs    sync.Pool
	mu      struct {
		sync.Mutex
		cache *cache
	}
}

// segment is a part of a rendered prompt whose tokens depend on nothing outside it.
type segment struct {
	start, end int32
	id         uint32 // of an added token
	kind       kind
}

// kind is where a segment stands.
type kind uint8

const (
	kindGap    kind = iota // the beginning of a gap, or all of it
	kindFirst              // the same, at the beginning of the text
	kindInside             // behind a cut within a gap
	kindAdded              // an added token
)

// job is the memory of one call.
type job struct {
	parts         []segment
	ends          []int // of places of the memo, as numbers of segments up to them
	hash          [2]maphash.Hash
	clock         clock
	cached, fresh int // bytes by how their tokens were had
}

// clock tells when a deadline has passed. It is looked at after some work only.
type clock struct {
	now      func() time.Time
	deadline time.Time
	work     int // bytes since the last look
}

// late counts n bytes of work.
func (c *clock) late(n int) bool {
	if c.work += n; c.work < clockBytes {
		return false
	}
	c.work = 0
	return c.now().After(c.deadline)
}

// atLeast moves the deadline so that as much time as d is left.
func (c *clock) atLeast(d time.Duration) {
	if t := c.now().Add(d); t.After(c.deadline) {
		c.deadline = t
	}
}

func newSegments(cacheBytes, memoBytes int64, seeds [2]maphash.Seed, m *metrics, now func() time.Time) *segments {
	s := &segments{seeds: seeds, memo: newMemo(memoBytes, m.memoEvicted.Inc), metrics: m, now: now}
	s.mu.cache = newCache(cacheBytes, m.segmentsEvicted.Inc)
	s.jobs.New = func() any {
		j := new(job)
		j.hash[0].SetSeed(seeds[0])
		j.hash[1].SetSeed(seeds[1])
		return j
	}
	return s
}

// free gives a job back, unless a rare prompt made it large.
func (s *segments) free(j *job) {
	s.metrics.cached.Add(float64(j.cached))
	s.metrics.fresh.Add(float64(j.fresh))
	j.cached, j.fresh = 0, 0
	if cap(j.parts) <= keepSegments {
		s.jobs.Put(j)
	}
}

// tokens returns the tokens of text behind those of before, which a post-processor puts
// there, and the chains of their block hashes by seed. Past the deadline it stops: read
// tells how many bytes of text the tokens stand for. Cutting may use the time up; half a
// limit is left for tokens then. text is UTF-8 of at most maxText bytes.
func (s *segments) tokens(m *Model, seed uint64, before []uint32, text []byte, deadline time.Time) (tokens []uint32, chains *kv.Chains, read int) {
	j := s.jobs.Get().(*job)
	defer s.free(j)
	j.clock = clock{now: s.now, deadline: deadline}
	j.cut(m.tok, text)
	keys := j.keys([3]uint64{m.id, seed, uint64(len(before))}, text)
	at, known, chains := s.memo.longest(keys)
	i := 0
	if at < 0 {
		known, chains = before, new(kv.Chains)
	} else {
		i = j.ends[at]
		read = int(j.parts[i-1].end)
	}
	s.metrics.known.Add(float64(read))
	j.clock.atLeast(localDeadline / 2)
	tokens = append(make([]uint32, 0, len(known)+min(len(text)-read, aheadBytes)/3+16), known...)
	ends := make([]int, len(keys))
	place, start := at+1, read
	for ; i < len(j.parts); i++ {
		p := j.parts[i]
		if j.clock.late(int(p.end-p.start) + segmentBytes) {
			break
		}
		if done := read - start; done >= aheadBytes && cap(tokens)-len(tokens) < int(p.end-p.start) {
			ahead := min(len(text)-read, 2*done) // as dense as so far
			tokens = slices.Grow(tokens, ahead*(len(tokens)-len(known))/done+pieceBytes)
		}
		tokens = s.encode(m, j, tokens, text, p)
		read = int(p.end)
		if place < len(ends) && j.ends[place] == i+1 {
			ends[place] = len(tokens)
			place++
		}
	}
	if place > 0 {
		s.memo.add(slices.Clip(keys[:place]), ends[:place], at+1, tokens, chains)
		s.metrics.memoBytes.Set(float64(s.memo.bytes()))
	}
	return tokens, chains, read
}

// cut finds the segments of text: the gaps between added tokens, long ones in pieces.
// What follows a segment does not move its ends, so a prompt that begins alike has the
// same segments up to where it differs. It ends early where a segment would be too long,
// and past the deadline.
func (j *job) cut(t *tokenizer.Tokenizer, text []byte) {
	j.parts, j.ends = j.parts[:0], j.ends[:0]
	last := 0
	t.Split(text, func(gap []byte, id uint32, added bool) bool {
		at := cap(text) - cap(gap) // gap is a part of text
		end := max(at+len(gap), last)
		last = end
		if added { // it may lie in the white space that the one before took along
			j.parts = append(j.parts, segment{int32(at), int32(end), id, kindAdded})
			return !j.clock.late(segmentBytes)
		}
		k := kindGap
		if at == 0 {
			k = kindFirst
		}
		for end-at > pieceBytes {
			n := t.SafeCut(text[at:min(end, at+longBytes)], pieceBytes)
			if n < 0 {
				break
			}
			j.parts = append(j.parts, segment{start: int32(at), end: int32(at + n), kind: k})
			at, k = at+n, kindInside
			if j.clock.late(segmentBytes) {
				return false
			}
		}
		if end-at > longBytes {
			return false
		}
		if at < end {
			j.parts = append(j.parts, segment{start: int32(at), end: int32(end), kind: k})
		}
		return !j.clock.late(segmentBytes)
	})
}

// keys returns the key of each prefix that is a place of the memo and fills ends. What
// follows a place does not move it. Prompts of different domains share none.
func (j *job) keys(domain [3]uint64, text []byte) []key {
	var d []byte
	for _, n := range domain {
		d = binary.LittleEndian.AppendUint64(d, n)
	}
	for i, last := 0, 0; i < len(j.parts); i++ {
		if end := int(j.parts[i].end); end-last >= max(placeEvery, last/placeShare) {
			j.ends = append(j.ends, i+1)
			last = end
		}
	}
	keys := make([]key, len(j.ends))
	for h := range j.hash {
		j.hash[h].Reset()
		j.hash[h].Write(d)
		from := 0
		for i, n := range j.ends {
			to := int(j.parts[n-1].end)
			j.hash[h].Write(text[from:to])
			keys[i][h] = j.hash[h].Sum64()
			from = to
		}
	}
	return keys
}

// encode appends the tokens of one segment.
func (s *segments) encode(m *Model, j *job, dst []uint32, text []byte, p segment) []uint32 {
	part := text[p.start:p.end]
	if p.kind == kindAdded {
		j.fresh += len(part)
		return append(dst, p.id)
	}
	if len(part) < keepBytes {
		j.fresh += len(part)
		return encodeSegment(m.tok, dst, part, p.kind)
	}
	k := key{maphash.Bytes(s.seeds[0], part), maphash.Bytes(s.seeds[1], part)}
	k = k.xor(key{m.id, uint64(len(part))<<8 | uint64(p.kind)})
	s.mu.Lock()
	known, ok := s.mu.cache.get(k)
	s.mu.Unlock()
	if ok {
		j.cached += len(part)
		return append(dst, known.IDs...)
	}
	j.fresh += len(part)
	from := len(dst)
	dst = encodeSegment(m.tok, dst, part, p.kind)
	ids := append([]uint32(nil), dst[from:]...)
	s.mu.Lock()
	s.mu.cache.put(k, Tokens{IDs: ids})
	s.metrics.segmentBytes.Set(float64(s.mu.cache.bytes))
	s.mu.Unlock()
	return dst
}

func encodeSegment(t *tokenizer.Tokenizer, dst []uint32, part []byte, k kind) []uint32 {
	if k == kindInside {
		return t.EncodeInside(dst, part)
	}
	return t.EncodeGap(dst, part, k == kindFirst)
}
