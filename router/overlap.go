package router

import "github.com/warmroute/warmroute/router/kv"

// scratch is the reused memory of one Route.
type scratch struct {
	chains    []sizedChain
	text      []kv.SequenceHash
	approx    []kv.Overlap // by worker number, in text blocks
	predicted []kv.Overlap // by worker number, in blocks of whatever chain identifies the prompt
	prompt    *kv.Prompt
	tokens    float64
	isExact   bool
	rows      []row
	tied      []int
}

// sizedChain is the prompt in blocks of one size, and who holds how much of it.
type sizedChain struct {
	blockSize int
	chain     []kv.SequenceHash
	exact     []kv.Overlap // by worker number
}

// match hashes the prompt once per block size and asks the indexes who holds it. It
// runs outside the router's lock; predicted entries are asked under it.
func (s *scratch) match(r *Router, to *served, p *kv.Prompt) {
	n := r.cfg.Workers.Len()
	s.chains = s.chains[:0]
	s.text, s.prompt, s.tokens, s.isExact = nil, p, 0, false
	s.approx = cleared(s.approx, n)
	s.predicted = cleared(s.predicted, n)
	if p == nil || p.Source == kv.SourceNone {
		return
	}
	s.tokens = float64(max(p.TokenCount, len(p.Tokens)))
	s.text = p.Text
	if s.isExact = p.Exact(); s.isExact {
		for _, bs := range to.blockSizes {
			c := s.nextChain()
			c.blockSize, c.chain = bs, p.Chain(bs)
			c.exact = cleared(c.exact, n)
			r.cfg.Index.Exact(bs).Overlap(c.chain, c.exact)
		}
	}
	if len(p.Text) > 0 && (to.text || !s.isExact) {
		r.cfg.Index.Approximate().Overlap(p.Text, p.TextBoundaries, s.approx)
	}
}

// release lets go of what belongs to one request.
func (s *scratch) release() {
	for i := range s.chains {
		s.chains[i].chain = nil
	}
	for i := range s.rows {
		s.rows[i] = row{}
	}
	s.prompt, s.text = nil, nil
}

// nextChain extends chains by one element and keeps the memory of earlier requests.
func (s *scratch) nextChain() *sizedChain {
	if len(s.chains) < cap(s.chains) {
		s.chains = s.chains[:len(s.chains)+1]
	} else {
		s.chains = append(s.chains, sizedChain{})
	}
	return &s.chains[len(s.chains)-1]
}

// predict asks who computes the prompt's blocks at this moment.
func (s *scratch) predict(r *Router) {
	p := r.cfg.Index.Predicted()
	if !s.isExact {
		if len(s.text) > 0 {
			p.Overlap(s.text, s.predicted)
		}
		return
	}
	for i := range s.chains {
		if len(s.chains[i].chain) > 0 {
			p.Overlap(s.chains[i].chain, s.predicted)
		}
	}
}

// sized returns the chain of one block size, nil where the prompt was not hashed so.
func (s *scratch) sized(blockSize int) *sizedChain {
	for i := range s.chains {
		if s.chains[i].blockSize == blockSize {
			return &s.chains[i]
		}
	}
	return nil
}

// The sources of an overlap.
const (
	fromExact       = "exact"
	fromApproximate = "approximate"
	fromPredicted   = "predicted"
)

// credit is the overlap that one rank gets.
type credit struct {
	blocks  int     // in the unit of the source: the rank's blocks, or text blocks
	tokens  float64 // at most the prompt
	exact   int     // blocks that events say are there, whatever the source
	from    string  // the source, "" for none
	chained *sizedChain
}

// credit decides which index speaks for rank k:
//
//	tokens known, feed complete or stale   exact
//	tokens known, feed partial             the larger of exact and approximate
//	tokens known, no feed                  approximate
//	tokens not known                       approximate
//
// and a larger predicted overlap wins over each.
func (s *scratch) credit(k *rank) credit {
	var c credit
	w := int(k.num)
	if s.isExact {
		c.chained = s.sized(k.blockSize())
	}
	bs := float64(k.blockSize())
	if c.chained != nil && k.exact() && w < len(c.chained.exact) {
		if c.exact = int(c.chained.exact[w].GPU); c.exact > 0 {
			c.blocks, c.tokens, c.from = c.exact, float64(c.exact)*bs, fromExact
		}
	}
	if w >= len(s.approx) {
		return c // the rank is younger than this request's look at the index
	}
	if !s.isExact || k.feed.State != FeedComplete && k.feed.State != FeedStale {
		if n := int(s.approx[w].GPU); n > 0 {
			if t := float64(s.prompt.TextTokens(n)); t > c.tokens {
				c.blocks, c.tokens, c.from = n, t, fromApproximate
			}
		}
	}
	if n := int(s.predicted[w].GPU); n > 0 {
		t := float64(n) * bs
		if !s.isExact {
			t = float64(s.prompt.TextTokens(n))
		}
		if t > c.tokens {
			c.blocks, c.tokens, c.from = n, t, fromPredicted
		}
	}
	c.tokens = min(c.tokens, s.tokens)
	return c
}

// unit returns the chain that identifies the prompt on rank k and the tokens of one
// of its blocks.
func (s *scratch) unit(k *rank) ([]kv.SequenceHash, float64) {
	if s.isExact {
		if c := s.sized(k.blockSize()); c != nil {
			return c.chain, float64(c.blockSize)
		}
		return nil, 1
	}
	if len(s.text) > 0 && s.prompt.BytesPerToken > 0 {
		return s.text, kv.TextBlockBytes / s.prompt.BytesPerToken
	}
	return nil, 1
}

// cleared returns a zeroed slice of n elements in the memory of s.
func cleared(s []kv.Overlap, n int) []kv.Overlap {
	if cap(s) < n {
		return make([]kv.Overlap, n, n+n/2)
	}
	s = s[:n]
	clear(s)
	return s
}
