package prompt

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/tokenizer"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	// pieceBytes is about how long a segment is where no added token ends it sooner.
	pieceBytes = 4 << 10
	// placeEvery is how many bytes lie at least between two prefixes that the memo knows:
	// some tokenizers make a token of each line break.
	placeEvery = 256
	// keepBytes is the shortest segment whose tokens are worth a place in the cache:
	// shorter ones are tokenised as fast as they are found there.
	keepBytes = 64
	// longBytes is the length of a segment that by itself would take longer than the
	// deadline: a text without line breaks. It ends the identity.
	longBytes = 512 << 10
	// clockEvery is after how many segments the deadline is looked at.
	clockEvery = 8
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
	start, end int
	kind       kind
	id         uint32 // of an added token
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
	parts []segment
	ends  []int // of places of the memo, as numbers of segments up to them
	hash  [2]maphash.Hash
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

// tokens returns the tokens of text behind those of before, which a post-processor puts
// there, and the chains of their block hashes by seed. Past the deadline it stops: read
// tells how many bytes of text the tokens stand for.
func (s *segments) tokens(m *Model, seed uint64, before []uint32, text []byte, deadline time.Time) (tokens []uint32, chains *kv.Chains, read int) {
	j := s.jobs.Get().(*job)
	defer s.jobs.Put(j)
	j.cut(m.tok, text)
	keys := j.keys([3]uint64{m.id, seed, uint64(len(before))}, text)
	at, known, chains := s.memo.longest(keys)
	i := 0
	if at < 0 {
		known, chains = before, new(kv.Chains)
	} else {
		i = j.ends[at]
		read = j.parts[i-1].end
	}
	s.metrics.known.Add(float64(read))
	tokens = append(make([]uint32, 0, len(known)+(len(text)-read)/3+16), known...)
	ends := make([]int, len(keys))
	place := at + 1
	for ; i < len(j.parts); i++ {
		p := j.parts[i]
		if p.end-p.start > longBytes || i%clockEvery == clockEvery-1 && s.now().After(deadline) {
			break
		}
		tokens = s.encode(m, tokens, text, p)
		read = p.end
		if place < len(ends) && j.ends[place] == i+1 {
			ends[place] = len(tokens)
			place++
		}
	}
	if place > 0 {
		s.metrics.memoBytes.Set(float64(s.memo.add(keys[:place], ends[:place], at+1, tokens, chains)))
	}
	return tokens, chains, read
}

// cut finds the segments of text: the gaps between added tokens, long ones in pieces.
// What follows a segment does not move its ends, so a prompt that begins alike has the
// same segments up to where it differs.
func (j *job) cut(t *tokenizer.Tokenizer, text []byte) {
	j.parts, j.ends = j.parts[:0], j.ends[:0]
	last := 0
	t.Split(text, func(gap []byte, id uint32, added bool) bool {
		at := cap(text) - cap(gap) // gap is a part of text
		end := max(at+len(gap), last)
		last = end
		if added { // it may lie in the white space that the one before took along
			j.parts = append(j.parts, segment{at, end, kindAdded, id})
			return true
		}
		k := kindGap
		if at == 0 {
			k = kindFirst
		}
		for end-at > pieceBytes {
			n := t.SafeCut(text[at:end], pieceBytes)
			if n < 0 {
				break
			}
			j.parts = append(j.parts, segment{start: at, end: at + n, kind: k})
			at, k = at+n, kindInside
		}
		if at < end {
			j.parts = append(j.parts, segment{start: at, end: end, kind: k})
		}
		return true
	})
}

// keys returns the key of each prefix that is a place of the memo and fills ends. Prompts
// of different domains share none.
func (j *job) keys(domain [3]uint64, text []byte) []key {
	var d []byte
	for _, n := range domain {
		d = binary.LittleEndian.AppendUint64(d, n)
	}
	for i, last := 0, 0; i < len(j.parts); i++ {
		if end := j.parts[i].end; end-last >= placeEvery {
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
			to := j.parts[n-1].end
			j.hash[h].Write(text[from:to])
			keys[i][h] = j.hash[h].Sum64()
			from = to
		}
	}
	return keys
}

// encode appends the tokens of one segment.
func (s *segments) encode(m *Model, dst []uint32, text []byte, p segment) []uint32 {
	part := text[p.start:p.end]
	if p.kind == kindAdded {
		s.metrics.fresh.Add(float64(len(part)))
		return append(dst, p.id)
	}
	if len(part) < keepBytes {
		s.metrics.fresh.Add(float64(len(part)))
		return encodeSegment(m.tok, dst, part, p.kind)
	}
	k := key{maphash.Bytes(s.seeds[0], part), maphash.Bytes(s.seeds[1], part)}
	k = k.xor(key{m.id, uint64(len(part))<<8 | uint64(p.kind)})
	s.mu.Lock()
	known, ok := s.mu.cache.get(k)
	s.mu.Unlock()
	if ok {
		s.metrics.cached.Add(float64(len(part)))
		return append(dst, known.IDs...)
	}
	s.metrics.fresh.Add(float64(len(part)))
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
