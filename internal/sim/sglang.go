package sim

import (
	"encoding/json"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/router/kv"
)

// sglangRoute returns the handler of a path that only SGLang has, and whether it wants
// a POST.
func (s *Server) sglangRoute(path string) (handler func(*fasthttp.RequestCtx), post bool) {
	switch path {
	case "/health", "/health_generate":
		return s.serveGeneratingHealth, false
	case "/server_info", "/get_server_info":
		return s.serveServerInfo, false
	case "/model_info", "/get_model_info":
		return func(ctx *fasthttp.RequestCtx) {
			s.json(ctx, object{"model_path": s.cfg.AdvertiseModel, "tokenizer_path": s.cfg.AdvertiseModel,
				"is_generation": true, "weight_version": "default"})
		}, false
	case "/flush_cache":
		return s.serveFlush, false
	case "/generate":
		return s.serveGenerate, true
	}
	return nil, false
}

// serveGeneratingHealth sends one token through the engine and sleeps before it
// answers, as SGLang does: a probe that comes too often costs the engine steps.
func (s *Server) serveGeneratingHealth(ctx *fasthttp.RequestCtx) {
	if f := s.faults.Load(); f.HealthStatus != 0 {
		ctx.SetStatusCode(f.HealthStatus)
		return
	}
	gen := newGeneration(s.pick(-1), []rendered{{tokens: []uint32{0}}}, 1, kv.Namespace{}, replyPlan{max: 1, natural: 1})
	if p, ok := ctx.Conn().(*conn); ok && p.raw != nil {
		gen.peer = p
	}
	if err := gen.rank.submit(gen); err != nil {
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		return
	}
	err := gen.finish()
	gen.close()
	t := time.NewTimer(s.cfg.HealthDelay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.stop:
	}
	if err != nil {
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
	}
}

func (s *Server) serveServerInfo(ctx *fasthttp.RequestCtx) {
	e := s.cfg.Engine
	info := object{
		"version": s.cfg.Version, "model_path": s.modelRoot(), "tokenizer_path": s.modelRoot(), "served_model_name": s.cfg.AdvertiseModel,
		"page_size": e.BlockSize, "dp_size": s.cfg.DPRanks, "chunked_prefill_size": e.ChunkTokens,
		"max_running_requests": e.MaxNumSeqs, "enable_cache_report": !s.cfg.HideCached,
		"max_total_num_tokens":  e.CapacityTokens / e.BlockSize * e.BlockSize,
		"speculative_algorithm": s.draftAlgorithm(),
		"kv_events":             nil, "internal_states": []object{},
	}
	if endpoint := s.EventsEndpoint(0); endpoint != "" {
		if u, err := url.Parse(endpoint); err == nil {
			host, port, _ := net.SplitHostPort(u.Host)
			n, _ := strconv.Atoi(port)
			info["kv_events"] = object{"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": n,
				"topic": s.cfg.Topic, "block_size": e.BlockSize, "dp_size": s.cfg.DPRanks}
		}
	}
	s.json(ctx, info)
}

// draftAlgorithm is nil where the engine decodes without drafts.
func (s *Server) draftAlgorithm() any {
	if s.cfg.Engine.Drafts {
		return "EAGLE"
	}
	return nil
}

func (s *Server) serveFlush(ctx *fasthttp.RequestCtx) {
	if !s.clear() {
		ctx.SetStatusCode(fasthttp.StatusBadRequest)
		ctx.SetBodyString("Flush cache failed: requests are running.\n")
		return
	}
	ctx.SetBodyString("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n")
}

// serveGenerate answers SGLang's own API, without streaming.
func (s *Server) serveGenerate(ctx *fasthttp.RequestCtx) {
	var native struct {
		Text     json.RawMessage `json:"text"`
		Sampling struct {
			MaxNewTokens *int `json:"max_new_tokens"`
			IgnoreEOS    bool `json:"ignore_eos"`
		} `json:"sampling_params"`
		genRequest
	}
	if e := decodeBody(ctx, &native); e != nil {
		s.fail(ctx, e)
		return
	}
	a := &answer{server: s, copies: 1, req: native.genRequest}
	if a.req.Stream {
		s.fail(ctx, badRequest("stream", "streaming is offered under /v1 only"))
		return
	}
	if a.req.MaxTokens = native.Sampling.MaxNewTokens; a.req.MaxTokens == nil {
		most := 128
		a.req.MaxTokens = &most
	}
	a.req.IgnoreEOS, a.req.Prompt = native.Sampling.IgnoreEOS, native.Text
	if len(a.req.InputIDs) > 0 {
		a.req.Prompt, _ = json.Marshal(a.req.InputIDs)
	}
	if e := s.prepare(ctx, a, completionAPI{}); e != nil {
		s.fail(ctx, e)
		return
	}
	peer, _ := ctx.Conn().(*conn)
	if peer != nil && peer.raw != nil {
		a.gen.peer = peer
	}
	if err := a.gen.rank.submit(a.gen); err != nil {
		s.fail(ctx, s.submitError(err))
		return
	}
	err := a.gen.finish()
	a.gen.close()
	if err != nil {
		s.drop(ctx, peer)
		return
	}
	c, u := a.gen.choices[0], a.gen.usage(1)
	finish := object{"type": c.reply.finish}
	if c.reply.finish == "length" {
		finish["length"] = len(c.reply.tokens)
	}
	s.json(ctx, object{
		"text": completionAPI{}.text(c.reply, 0, u.output), "output_ids": c.reply.tokens[:u.output],
		"meta_info": object{"id": a.id, "prompt_tokens": u.prompt, "completion_tokens": u.output,
			"cached_tokens": u.cached, "finish_reason": finish, "dp_rank": a.gen.rank.number},
	})
}
