package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/router/kv"
)

// genRequest is what the simulator reads of a generation request; everything else is
// accepted and ignored, as engines do.
type genRequest struct {
	rendering
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	InputIDs            []uint32        `json:"input_ids"`
	Stream              bool            `json:"stream"`
	N                   *int            `json:"n"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	CacheSalt           string          `json:"cache_salt"`
	ExtraKey            string          `json:"extra_key"`
	ReturnTokenIDs      bool            `json:"return_token_ids"`
	RoutedDPRank        *int            `json:"routed_dp_rank"`
	DataParallelRank    *int            `json:"data_parallel_rank"`
	raw                 []byte          // the body; valid during the request
	StreamOptions       struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

// apiError is an answer that is not 200.
type apiError struct {
	status              int
	message, typ, param string
	retryAfter          int
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: fasthttp.StatusBadRequest, typ: "BadRequestError", param: param, message: fmt.Sprintf(format, args...)}
}

// body is the engine's JSON for the error: vLLM nests it, SGLang has it flat except in
// a stream.
func (e *apiError) body(like Personality, inStream bool) []byte {
	type fields struct {
		Object  string  `json:"object,omitempty"`
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	f := fields{Message: e.message, Type: e.typ, Code: e.status}
	if e.param != "" {
		f.Param = &e.param
	}
	var b []byte
	if like == SGLang && !inStream {
		f.Object = "error"
		b, _ = json.Marshal(f)
		return b
	}
	b, _ = json.Marshal(map[string]any{"error": f})
	return b
}

func (s *Server) fail(ctx *fasthttp.RequestCtx, e *apiError) {
	ctx.ResetBody()
	ctx.SetStatusCode(e.status)
	ctx.SetContentType("application/json")
	if e.retryAfter > 0 {
		ctx.Response.Header.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	ctx.SetBody(e.body(s.cfg.Like, false))
}

func (s *Server) json(ctx *fasthttp.RequestCtx, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

// decodeBody reads a JSON body as an engine's validation does.
func decodeBody(ctx *fasthttp.RequestCtx, v any) *apiError {
	if t := ctx.Request.Header.ContentType(); len(t) > 0 && !bytes.HasPrefix(t, []byte("application/json")) {
		e := badRequest("", "Unsupported Media Type: Only 'application/json' is allowed")
		e.typ = "Bad Request"
		return e
	}
	if q, ok := v.(*genRequest); ok {
		q.raw = ctx.PostBody()
	}
	err := json.Unmarshal(ctx.PostBody(), v)
	if err == nil {
		return nil
	}
	e := badRequest("", "%v", err)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		field := strings.TrimPrefix(strings.TrimPrefix(wrong.Field, "genRequest."), "rendering.")
		e = badRequest(field, "%s: a %s is not allowed here", field, wrong.Value)
	}
	e.typ = "Bad Request"
	return e
}

// namespace resolves the requested model: the base model, or an adapter of it.
func (s *Server) namespace(q *genRequest) (kv.Namespace, *apiError) {
	ns := kv.Namespace{Salt: q.CacheSalt}
	if s.cfg.Like == SGLang {
		ns.Salt += q.ExtraKey
	}
	switch {
	case q.Model == "" || q.Model == s.cfg.AdvertiseModel || s.cfg.Like == SGLang && !slices.Contains(s.cfg.Adapters, q.Model):
		return ns, nil // SGLang serves any name with its model
	case slices.Contains(s.cfg.Adapters, q.Model):
		ns.LoRA = q.Model
		return ns, nil
	}
	return ns, &apiError{status: fasthttp.StatusNotFound, typ: "NotFoundError", param: "model",
		message: fmt.Sprintf("The model `%s` does not exist.", q.Model)}
}

// dpRank returns the rank that the request is pinned to, -1 for none. vLLM ignores a
// header that is no number, SGLang refuses it.
func (s *Server) dpRank(ctx *fasthttp.RequestCtx, q *genRequest) (int, *apiError) {
	rank, pinned := -1, false
	if h := ctx.Request.Header.Peek("X-Data-Parallel-Rank"); len(h) > 0 {
		n, err := strconv.Atoi(string(h))
		switch {
		case err == nil:
			rank, pinned = n, true
		case s.cfg.Like == SGLang:
			return -1, badRequest("routed_dp_rank", "X-Data-Parallel-Rank %q is not a number", h)
		}
	}
	if s.cfg.Like == SGLang {
		for _, p := range []*int{q.DataParallelRank, q.RoutedDPRank} {
			if p != nil {
				rank, pinned = *p, true
			}
		}
	}
	if pinned && (rank < 0 || rank >= len(s.ranks)) {
		return -1, badRequest("data_parallel_rank", "data_parallel_rank %d is out of range [0, %d)", rank, len(s.ranks))
	}
	return rank, nil
}

// prompts reads the prompt of a completion: a text, texts, ids or lists of ids.
func (s *Server) prompts(raw json.RawMessage) ([]rendered, *apiError) {
	if len(raw) == 0 {
		return nil, badRequest("prompt", "prompt is missing")
	}
	var lists [][]uint32
	var texts []string
	var ids []uint32
	if raw[0] == '"' {
		raw = slices.Concat([]byte{'['}, raw, []byte{']'})
	}
	if json.Unmarshal(raw, &texts) != nil {
		texts = nil // what was read before the first id
		if json.Unmarshal(raw, &ids) == nil {
			lists = [][]uint32{ids}
		} else if json.Unmarshal(raw, &lists) != nil {
			return nil, badRequest("prompt", "prompt must be a string, a list of strings, a list of token ids or a list of those")
		}
	}
	for _, t := range texts {
		lists = append(lists, s.vocabulary.prompt(t))
	}
	out := make([]rendered, 0, len(lists))
	for _, l := range lists {
		if len(l) == 0 {
			return nil, badRequest("prompt", "The prompt is empty")
		}
		out = append(out, rendered{tokens: l})
	}
	if len(out) == 0 {
		return nil, badRequest("prompt", "The prompt is empty")
	}
	return out, nil
}

// chatPrompt renders the messages of q, or takes SGLang's input_ids for them.
func (s *Server) chatPrompt(q *genRequest) (rendered, *apiError) {
	if s.cfg.Like == SGLang && len(q.InputIDs) > 0 {
		return rendered{tokens: q.InputIDs}, nil
	}
	if len(q.Messages) == 0 {
		return rendered{}, badRequest("messages", "messages must not be empty")
	}
	for i, m := range q.Messages {
		if m.Role == "" {
			return rendered{}, badRequest("messages", "messages[%d] has no role", i)
		}
	}
	if s.cfg.Like == VLLM && q.ContinueFinalMessage && q.AddGenerationPrompt != nil && *q.AddGenerationPrompt {
		return rendered{}, badRequest("add_generation_prompt", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	}
	if s.cfg.Model == nil {
		r := q.rendering
		if s.cfg.Like == SGLang {
			r.Tools = q.sglangTools()
		}
		return r.render(s.cfg.Like, s.cfg.Template == "thinking"), nil
	}
	ids, err := s.cfg.Model.Tokenize(openai.Chat, q.raw, prompt.StyleOf(string(s.cfg.Like)).At(s.cfg.Version))
	if err != nil {
		return rendered{}, badRequest("messages", "%v", err)
	}
	thinks := s.cfg.Template == "thinking" && (q.Kwargs.EnableThinking == nil || *q.Kwargs.EnableThinking)
	return rendered{tokens: ids, thinks: thinks}, nil
}

// limit returns how many tokens may be generated after the longest of the prompts.
func (s *Server) limit(q *genRequest, longest, def int) (int, *apiError) {
	limit := s.cfg.MaxModelLen - longest
	want := def
	for _, p := range []*int{q.MaxTokens, q.MaxCompletionTokens} {
		if p != nil {
			want = *p
		}
	}
	least := 1
	if s.cfg.Like == SGLang {
		least = 0
	}
	switch {
	case want == 0 && def == 0 && q.MaxTokens == nil && q.MaxCompletionTokens == nil:
		want = limit
	case want < least:
		return 0, badRequest("max_tokens", "max_tokens must be at least %d, got %d.", least, want)
	}
	if limit < 1 || want > limit {
		e := badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
			s.cfg.MaxModelLen, max(want, 1), longest, longest+max(want, 1))
		return 0, e
	}
	return want, nil
}

// authorized checks the API key of what is under /v1, as both engines do.
func (s *Server) authorized(ctx *fasthttp.RequestCtx, path string) bool {
	if s.cfg.APIKey == "" || !strings.HasPrefix(path, "/v1") {
		return true
	}
	return string(ctx.Request.Header.Peek("Authorization")) == "Bearer "+s.cfg.APIKey
}
