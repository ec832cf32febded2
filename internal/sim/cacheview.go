package sim

import (
	"fmt"
	"slices"

	"github.com/valyala/fasthttp"
)

// cacheView is what GET /cache answers: the prefix cache itself, where events only say
// how it changes. Engines have no such endpoint; tests of whole processes compare the
// router's index with it.
type cacheView struct {
	Ranks []rankCache `json:"ranks"`
}

type rankCache struct {
	Rank      int      `json:"rank"`
	BlockSize int      `json:"block_size"`
	Blocks    int      `json:"blocks"`    // distinct prefixes
	Sequences []string `json:"sequences"` // their sequence hashes, 16 hex digits, sorted
}

func (s *Server) serveCache(ctx *fasthttp.RequestCtx) {
	var v cacheView
	for i := range s.ranks {
		truth := s.Truth(i)
		r := rankCache{Rank: i, BlockSize: s.cfg.Engine.BlockSize, Blocks: len(truth), Sequences: make([]string, 0, len(truth))}
		for h := range truth {
			r.Sequences = append(r.Sequences, fmt.Sprintf("%016x", uint64(h)))
		}
		slices.Sort(r.Sequences)
		v.Ranks = append(v.Ranks, r)
	}
	s.json(ctx, v)
}
