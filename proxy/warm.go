package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefill"
)

const (
	headerSpeculative = "X-Speculative-Prefill"   // of a request: warm the next turn
	headerSpeculation = "X-Warmroute-Speculation" // of an answer: what became of its warm-up

	// warmAnswerBytes bounds the answer to a warm-up: one token and its usage.
	warmAnswerBytes = 1 << 20
)

// Sender delivers warm-ups to the workers of a fleet.
type Sender struct{ Fleet *upstream.Fleet }

// Prefill implements prefill.Sender.
func (s Sender) Prefill(ctx context.Context, w *prefill.Warmup) (prefill.Answer, error) {
	a := prefill.Answer{Usage: openai.NoUsage}
	worker := s.Fleet.Worker(w.Worker.ID)
	if worker == nil {
		return a, errWorkerLeft
	}
	resp, err := worker.Do(ctx, &upstream.Request{
		Method: fasthttp.MethodPost, Path: w.Path, Body: w.Body,
		Header: w.Header, Authorization: w.Authorization,
	})
	if err != nil {
		return a, err
	}
	defer resp.Close()
	a.Status, a.RetryAfter = resp.Header.StatusCode(), upstream.RetryAfter(resp.Header)
	body, err := io.ReadAll(io.LimitReader(resp, warmAnswerBytes))
	if err != nil {
		return a, err
	}
	if a.Status == fasthttp.StatusOK {
		a.Usage, a.Void = warmUsage(body)
	}
	return a, nil
}

// warmUsage reads the answer to a warm-up. void says that it is none: no JSON object, cut at
// warmAnswerBytes, or an error. A stream, which nobody asked for, is an answer.
func warmUsage(body []byte) (u openai.Usage, void bool) {
	if bytes.HasPrefix(body, []byte("data:")) {
		return openai.NoUsage, false
	}
	var seen openai.Stream
	if openai.ParseResponse(body, 1, &seen) != nil || seen.Failed {
		return openai.NoUsage, true
	}
	if u = seen.UsageOrNone(); !u.Known() {
		u = nativeUsage(body)
	}
	return u, false
}

// nativeUsage reads what SGLang's /generate and llama.cpp's /completion say of their work.
func nativeUsage(body []byte) openai.Usage {
	var a struct {
		Meta struct {
			Prompt *int `json:"prompt_tokens"`
			Output *int `json:"completion_tokens"`
			Cached *int `json:"cached_tokens"`
		} `json:"meta_info"`
		Prompt  *int `json:"tokens_evaluated"`
		Output  *int `json:"tokens_predicted"`
		Timings struct {
			Cached *int `json:"cache_n"`
		} `json:"timings"`
	}
	u := openai.NoUsage
	if json.Unmarshal(body, &a) != nil {
		return u
	}
	for _, f := range []struct {
		to       *int
		from, or *int
	}{{&u.PromptTokens, a.Meta.Prompt, a.Prompt}, {&u.CompletionTokens, a.Meta.Output, a.Output}, {&u.CachedTokens, a.Meta.Cached, a.Timings.Cached}} {
		switch {
		case f.from != nil:
			*f.to = *f.from
		case f.or != nil:
			*f.to = *f.or
		}
	}
	return u
}

// pauseWarming keeps warm-ups away from a worker that asked for a pause.
func (t *turn) pauseWarming(h *fasthttp.ResponseHeader) {
	if d := upstream.RetryAfter(h); d > 0 && t.s.cfg.Prefill != nil {
		t.s.cfg.Prefill.Pause(t.worker.ID(), d)
	}
}

// finishWarm tells the prefiller how the turn ended. left says that the client went away
// before the end.
func (t *turn) finishWarm(left bool) {
	if t.warm == nil {
		return
	}
	e := t.warmEnd
	e.Prompt = t.prompt
	if t.lease != nil {
		e.Worker = t.lease.Worker()
	}
	if r := t.relay; r != nil {
		e.OK = t.status == fasthttp.StatusOK && r.seen.Complete() && !r.seen.Failed
		e.TTFT, e.Usage = r.firstToken, r.seen.UsageOrNone()
	}
	e.OK = e.OK && !left && t.failure == nil
	t.warm.Finish(e)
}
