package sim

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// serveTokenize answers both forms of tokenize: a text, and messages through the chat
// template.
func (s *Server) serveTokenize(ctx *fasthttp.RequestCtx) {
	var q genRequest
	if e := decodeBody(ctx, &q); e != nil {
		s.fail(ctx, e)
		return
	}
	if _, e := s.namespace(&q); e != nil {
		s.fail(ctx, e)
		return
	}
	var tokens any
	count := 0
	if len(q.Messages) > 0 {
		p, e := s.chatPrompt(&q)
		if e != nil {
			s.fail(ctx, e)
			return
		}
		tokens, count = p.tokens, len(p.tokens)
	} else {
		var text string
		var texts []string
		switch {
		case json.Unmarshal(q.Prompt, &text) == nil:
			ids := s.vocabulary.prompt(text)
			tokens, count = ids, len(ids)
		case s.cfg.Like == SGLang && json.Unmarshal(q.Prompt, &texts) == nil:
			lists, counts := [][]uint32{}, []int{}
			for _, t := range texts {
				lists = append(lists, s.vocabulary.prompt(t))
				counts = append(counts, len(lists[len(lists)-1]))
			}
			s.json(ctx, object{"tokens": lists, "count": counts, "max_model_len": s.cfg.MaxModelLen})
			return
		default:
			s.fail(ctx, badRequest("prompt", "prompt must be a string, or messages a list of messages"))
			return
		}
	}
	out := object{"tokens": tokens, "count": count, "max_model_len": s.cfg.MaxModelLen}
	if s.cfg.Like == VLLM {
		out["token_strs"] = nil
	}
	s.json(ctx, out)
}

func (s *Server) serveDetokenize(ctx *fasthttp.RequestCtx) {
	var q struct {
		Tokens []uint32 `json:"tokens"`
	}
	if e := decodeBody(ctx, &q); e != nil {
		s.fail(ctx, e)
		return
	}
	key := "prompt"
	if s.cfg.Like == SGLang {
		key = "text"
	}
	s.json(ctx, object{key: s.vocabulary.decode(q.Tokens)})
}

// serveRender answers vLLM's render endpoints: what the engine would be asked, tokens
// included, without asking it.
func (s *Server) serveRender(ctx *fasthttp.RequestCtx, form api) {
	a := &answer{server: s, copies: 1}
	if e := decodeBody(ctx, &a.req); e != nil {
		s.fail(ctx, e)
		return
	}
	if e := s.prepare(ctx, a, form); e != nil {
		s.fail(ctx, e)
		return
	}
	var all []object
	for i := 0; i < len(a.gen.choices); i += a.copies {
		c := a.gen.choices[i]
		r := object{
			"request_id": a.id, "token_ids": c.seq.Tokens, "model": a.model, "stream": a.req.Stream,
			"sampling_params": object{"max_tokens": a.req.MaxTokens, "n": a.copies, "ignore_eos": a.req.IgnoreEOS},
			"features":        nil, "cache_salt": nil, "priority": 0, "kv_transfer_params": nil,
		}
		if a.req.CacheSalt != "" {
			r["cache_salt"] = a.req.CacheSalt
		}
		if len(c.seq.Media) > 0 {
			r["features"] = features(c.seq)
		}
		all = append(all, r)
	}
	if _, ok := form.(chatAPI); ok {
		s.json(ctx, all[0])
		return
	}
	s.json(ctx, all)
}

// features names a prompt's media as vLLM does: content digests and placeholder runs.
// The simulator's content hash is the head of the digest, as in its events.
func features(s *Seq) object {
	hashes, places := map[string][]string{}, map[string][]object{}
	for _, m := range s.Media {
		kind := "image"
		if s.Tokens[m.Start] == tokAudio {
			kind = "audio"
		}
		hashes[kind] = append(hashes[kind], hex16(m.Hash)+strings.Repeat("0", 48))
		places[kind] = append(places[kind], object{"offset": m.Start, "length": m.End - m.Start})
	}
	return object{"mm_hashes": hashes, "mm_placeholders": places}
}

// modelRoot is the path or name that the engine was started with.
func (s *Server) modelRoot() string {
	if s.cfg.Model != nil {
		return s.cfg.Model.Dir()
	}
	return s.cfg.AdvertiseModel
}

func (s *Server) serveModels(ctx *fasthttp.RequestCtx) {
	owner := string(s.cfg.Like)
	created := time.Now().Unix()
	base := s.cfg.AdvertiseModel
	models := []object{{"id": base, "object": "model", "created": created, "owned_by": owner,
		"root": s.modelRoot(), "parent": nil, "max_model_len": s.cfg.MaxModelLen}}
	for _, name := range s.cfg.Adapters {
		models = append(models, object{"id": name, "object": "model", "created": created, "owned_by": owner,
			"root": "/adapters/" + name, "parent": base, "max_model_len": nil})
	}
	s.json(ctx, object{"object": "list", "data": models})
}
