package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	goopenai "github.com/sashabaranov/go-openai"

	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/openai"
)

// drainTime bounds the wait for the end of a stream that has said [DONE]: reaching it
// keeps the connection, and no measured time contains it.
const drainTime = 250 * time.Millisecond

// Kinds of failure.
const (
	failTimeout   = "timeout"
	failConnect   = "connect"       // no response
	failStream    = "broken stream" // it ended before a finish_reason
	failEvent     = "error event"   // the endpoint reported an error in the stream
	failEmpty     = "no output"
	failCancelled = "cancelled" // by the end of the run; counted apart
)

// answer is what a turn brought for the history.
type answer struct {
	content, reasoning string
	calls              []goopenai.ToolCall
}

// turn sends one request and follows its stream. record is filled in from start, the
// instant of the run that offsets count from.
func (c *client) turn(ctx context.Context, start time.Time, model, session string, messages []goopenai.ChatCompletionMessage, record *report.Record) answer {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.timeout(), errTurnTimeout)
	defer cancel()
	x := &exchange{fields: c.fields, header: c.header(session)}
	ask := goopenai.ChatCompletionRequest{
		Model:               model,
		Messages:            messages,
		MaxCompletionTokens: c.cfg.MaxCompletionTokens,
		StreamOptions:       &goopenai.StreamOptions{IncludeUsage: true},
	}
	if c.cfg.ToolSteps > 0 {
		ask.Tools, ask.ToolChoice = tools, "required"
		if record.Step == c.cfg.ToolSteps {
			ask.ToolChoice = "none"
		}
	}
	stream, err := c.api.CreateChatCompletionStream(context.WithValue(ctx, exchangeKey{}, x), ask)
	var f follower
	if err != nil {
		record.Failure, record.Error = failure(ctx, apiError(err))
	} else {
		defer stream.Close()
		f.read(ctx, cancel, c.now, x.body)
		record.Failure, record.Error = f.failure(ctx, x.resp)
	}
	end := c.now()
	if x.start.IsZero() { // the request was refused before it was sent
		x.start, x.headers = end, end
	}
	record.Lag = report.Micros(x.start.Sub(start)) - record.Planned
	record.Headers = report.Micros(x.headers.Sub(x.start))
	record.End = report.Micros(end.Sub(start))
	record.OK = record.Failure == ""
	if x.resp != nil {
		h := x.resp.Header
		record.Worker, record.Speculation, record.RequestID = h.Get("X-Warmroute-Worker"), short(h.Get("X-Warmroute-Speculation")), h.Get("X-Request-Id")
	}
	f.fill(x.start, record)
	return answer{f.content.String(), f.reasoning.String(), f.calls}
}

var errTurnTimeout = errors.New("the turn took longer than --timeout")

// header returns what a turn sends beside go-openai's headers. The explanation is asked
// for always, so that runs with and without a hint cost the endpoint the same.
func (c *client) header(session string) http.Header {
	h := http.Header{"X-Warmroute-Explain": {"1"}}
	switch c.cfg.Hint {
	case HintOn:
		h.Set("X-Speculative-Prefill", "true")
	case HintOff:
		h.Set("X-Speculative-Prefill", "false")
	}
	if name := c.cfg.sessionHeader(); name != "" {
		h.Set(name, session)
	}
	return h
}

// failure names what went wrong before a stream began.
func failure(ctx context.Context, err error) (kind, message string) {
	var status *statusError
	switch {
	case errors.Is(context.Cause(ctx), errTurnTimeout):
		return failTimeout, errTurnTimeout.Error()
	case ctx.Err() != nil:
		return failCancelled, ctx.Err().Error()
	case errors.As(err, &status):
		message := short(status.message)
		if status.code == http.StatusBadRequest {
			message += " (endpoints that know no ignore_eos: --ignore-eos=false; other fields: --extra-body '{\"field\":null}')"
		}
		return fmt.Sprintf("status %d", status.code), message
	}
	return failConnect, short(err.Error())
}

// follower reads a stream and keeps its instants.
type follower struct {
	stream    openai.Stream
	firstByte time.Time
	first     time.Time // first token of any kind
	visible   time.Time // first visible token
	last      time.Time // last token
	gaps      []report.Micros
	content   strings.Builder
	reasoning strings.Builder
	calls     []goopenai.ToolCall
	err       error // of the body, io.EOF for its end

	r openai.Reader
}

// read follows body to its end. Everything that one read brings carries the instant at
// which the read returned.
func (f *follower) read(ctx context.Context, cancel context.CancelFunc, now func() time.Time, body io.Reader) {
	var scanner openai.Scanner
	buf := make([]byte, 32<<10)
	var drain *time.Timer
	for {
		n, err := body.Read(buf)
		at := now()
		if n > 0 && f.firstByte.IsZero() {
			f.firstByte = at
		}
		scanner.Feed(buf[:n])
		for ev, ok := scanner.Next(); ok; ev, ok = scanner.Next() {
			f.event(ev, at)
		}
		if err != nil {
			if ev, ok := scanner.Close(); ok {
				f.event(ev, at)
			}
			f.err = err
			break
		}
		if f.stream.Done && drain == nil {
			drain = time.AfterFunc(drainTime, cancel)
		}
	}
	if drain != nil {
		drain.Stop()
	}
}

func (f *follower) event(ev openai.Event, at time.Time) {
	if f.stream.Done {
		return
	}
	frame := f.stream.Observe(ev)
	if frame&openai.FrameToken == 0 {
		return
	}
	if f.first.IsZero() {
		f.first = at
	} else {
		f.gaps = append(f.gaps, report.Micros(at.Sub(f.last)))
	}
	f.last = at
	if f.text(ev.Data) && f.visible.IsZero() {
		f.visible = at
	}
}

// text collects a chunk's output for the history and tells whether any of it is visible.
func (f *follower) text(data []byte) (visible bool) {
	r := &f.r
	r.Reset(data, openai.Span{Start: 0, End: len(data)})
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) != "choices" || r.Peek() != '[' {
			r.Skip()
			continue
		}
		r.Array()
		for r.Elem() {
			if r.Peek() != '{' {
				r.Skip()
				continue
			}
			r.Object()
			for key, ok := r.Key(); ok; key, ok = r.Key() {
				if string(key) != "delta" || r.Peek() != '{' {
					r.Skip()
					continue
				}
				visible = f.delta(data) || visible
			}
		}
	}
	return visible
}

func (f *follower) delta(data []byte) (visible bool) {
	r := &f.r
	before, thought := f.content.Len(), f.reasoning.Len()
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "content":
			f.add(&f.content)
		case "reasoning", "reasoning_content": // some endpoints send both, with one text
			if f.reasoning.Len() > thought {
				r.Skip()
				continue
			}
			f.add(&f.reasoning)
		case "tool_calls", "function_call", "refusal", "audio":
			tools := string(key) == "tool_calls"
			if s := r.Skip(); r.Err() == nil && s.End-s.Start > len(`""`) && string(s.Of(data)) != "null" {
				visible = true
				if tools {
					f.call(s.Of(data))
				}
			}
		default:
			r.Skip()
		}
	}
	return visible || f.content.Len() > before
}

// tools is what a tool loop offers: short, because templates put it before the salt.
var tools = []goopenai.Tool{{Type: goopenai.ToolTypeFunction, Function: &goopenai.FunctionDefinition{
	Name: "lookup", Parameters: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string"}}}`),
}}}

// call joins the pieces of tool calls; the first of each names its id.
func (f *follower) call(data []byte) {
	var pieces []goopenai.ToolCall
	if json.Unmarshal(data, &pieces) != nil {
		return
	}
	for _, p := range pieces {
		i := len(f.calls) - 1
		if p.Index != nil {
			i = *p.Index
		}
		if i >= len(f.calls) || i < 0 {
			f.calls = append(f.calls, goopenai.ToolCall{Type: goopenai.ToolTypeFunction})
			i = len(f.calls) - 1
		}
		c := &f.calls[i]
		c.ID += p.ID
		c.Function.Name += p.Function.Name
		c.Function.Arguments += p.Function.Arguments
	}
}

func (f *follower) add(to *strings.Builder) {
	if f.r.Peek() != '"' {
		f.r.Skip()
		return
	}
	raw, escaped := f.r.String()
	if escaped {
		raw = openai.Unescape(nil, raw)
	}
	to.Write(raw)
}

// failure says what was wrong with the stream, "" for nothing.
func (f *follower) failure(ctx context.Context, resp *http.Response) (kind, message string) {
	s := &f.stream
	finished := s.Done || s.Finished > 0
	switch {
	case s.Failed:
		return failEvent, short(s.Error)
	case finished && !f.first.IsZero():
		return "", ""
	case finished:
		return failEmpty, fmt.Sprintf("finish_reason %q without a token", s.Finish)
	case errors.Is(context.Cause(ctx), errTurnTimeout):
		return failTimeout, errTurnTimeout.Error()
	case ctx.Err() != nil:
		return failCancelled, ctx.Err().Error()
	case f.first.IsZero() && !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		return failEmpty, fmt.Sprintf("the answer is %q and not an event stream", resp.Header.Get("Content-Type"))
	case errors.Is(f.err, io.EOF):
		return failStream, fmt.Sprintf("the stream ended after %d chunks without finish_reason and [DONE]", s.Deltas)
	}
	return failStream, fmt.Sprintf("after %d chunks: %s", s.Deltas, short(f.err.Error()))
}

// fill writes intervals and token counts into the record.
func (f *follower) fill(start time.Time, q *report.Record) {
	since := func(t time.Time) report.Micros {
		if t.IsZero() {
			return 0
		}
		return report.Micros(t.Sub(start))
	}
	s := &f.stream
	q.FirstByte, q.TTFT, q.E2E, q.Gaps = since(f.firstByte), since(f.first), since(f.last), f.gaps
	if !f.visible.IsZero() {
		v := since(f.visible)
		q.FirstOutput = &v
	}
	said := func(n int) *int {
		if n < 0 {
			return nil
		}
		return &n
	}
	u := s.UsageOrNone()
	q.PromptTokens, q.CompletionTokens = said(u.PromptTokens), said(u.CompletionTokens)
	q.CachedTokens, q.ReasoningTokens = said(u.CachedTokens), said(u.ReasoningTokens)
	q.Deltas, q.Finish = s.Deltas, s.Finish
	q.NoDone = q.OK && !s.Done
	tokens := s.Deltas
	if u.CompletionTokens >= 0 {
		tokens = u.CompletionTokens
	}
	if q.OK && tokens > 1 {
		itl := (q.E2E - q.TTFT) / report.Micros(tokens-1)
		q.ITL = &itl
	}
}
