package openai

// Usage is what an engine says that a request took, in tokens; -1 is "not said".
// Engines leave cached tokens out unless a flag is set, so absent is not zero.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int
	ReasoningTokens  int
}

// NoUsage is the Usage of which nothing is known.
var NoUsage = Usage{-1, -1, -1, -1}

// Known tells whether the engine said anything.
func (u Usage) Known() bool { return u.PromptTokens >= 0 || u.CompletionTokens >= 0 }

// Frame says what one event of a stream brought. It is a set of bits.
type Frame uint8

// The bits of a Frame.
const (
	FrameToken     Frame = 1 << iota // visible or reasoning output, a tool call included
	FrameFinish                      // the last choice finished; set once a stream
	FrameUsage                       // a usage object
	FrameUsageOnly                   // a usage object and no choice: exists only because usage was asked for
	FrameDone                        // [DONE]
	FrameError                       // an error in the stream
	FrameUnread                      // not JSON, or beyond the scanner's limit
)

// Stream follows one streamed response. The zero value is ready for a single choice.
type Stream struct {
	N int // choices the request asked for; 0 is 1

	FirstToken bool   // some output has been seen
	Deltas     int    // deltas with output, of all choices; about one token each
	Finished   int    // choices that have finished
	Finish     string // finish_reason of the choice of the lowest index so far
	Done       bool   // [DONE] was seen
	Failed     bool   // an error came in the stream
	Error      string // its message; may quote the prompt, so never logged
	Unread     int    // events that could not be read
	Usage      Usage  // last values said; meaningful once HasUsage

	HasUsage bool

	lowest int
	ended  [2]uint64
	r      Reader
}

// Reset prepares the value for another stream of n choices.
func (s *Stream) Reset(n int) { *s = Stream{N: n, r: s.r} }

// UsageOrNone returns Usage, or NoUsage where none was said.
func (s *Stream) UsageOrNone() Usage {
	if !s.HasUsage {
		return NoUsage
	}
	return s.Usage
}

// Complete tells whether every choice finished and nothing failed.
func (s *Stream) Complete() bool { return s.Finished >= max(s.N, 1) && !s.Failed }

// Observe reads one event. What could be read of a broken event counts.
func (s *Stream) Observe(ev Event) Frame {
	d := ev.Data
	if ev.Oversize {
		s.Unread++
		return FrameUnread
	}
	if string(d) == "[DONE]" {
		s.Done = true
		return FrameDone
	}
	f := s.read(d)
	if ev.Error {
		s.Failed = true
		f |= FrameError
	}
	if s.r.err != nil {
		s.Unread++
		f |= FrameUnread
	}
	return f
}

// read walks one chunk object, or the body of a response.
func (s *Stream) read(d []byte) (f Frame) {
	r := &s.r
	r.Reset(d, Span{0, len(d)})
	choices := 0
	flat := false
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "choices":
			if r.Peek() != '[' {
				r.Skip()
				continue
			}
			r.Array()
			for r.Elem() {
				choices++
				f |= s.choice()
			}
		case "usage":
			if r.Peek() != '{' {
				r.Skip()
				continue
			}
			s.usage()
			f |= FrameUsage
		case "timings": // llama.cpp, also where usage was not asked for
			s.timings()
		case "error":
			if r.Null() {
				continue
			}
			s.failure()
			f |= FrameError
		case "object":
			at := r.Skip()
			flat = at.Present() && string(at.Of(d)) == `"error"`
		case "message":
			if flat {
				s.failure()
				f |= FrameError
				continue
			}
			r.Skip()
		default:
			r.Skip()
		}
	}
	if choices == 0 && f&FrameUsage != 0 {
		f |= FrameUsageOnly
	}
	return f
}

// failure reads an error: a message, or an object that holds one.
func (s *Stream) failure() {
	r := &s.r
	s.Failed = true
	if r.Peek() == '"' {
		s.errorText()
		return
	}
	if r.Peek() != '{' {
		r.Skip()
		return
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) == "message" && r.Peek() == '"' {
			s.errorText()
			continue
		}
		r.Skip()
	}
}

func (s *Stream) errorText() {
	raw, escaped := s.r.String()
	raw = raw[:min(len(raw), 1024)]
	if escaped {
		raw = Unescape(nil, raw)
	}
	s.Error = string(raw)
}

// choice reads one element of choices, of a chunk or of a whole response.
func (s *Stream) choice() (f Frame) {
	r := &s.r
	if r.Peek() != '{' {
		r.Skip()
		return 0
	}
	index, reason, output := 0, "", false
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "index":
			if r.Peek() == '0' {
				n, _ := r.Int()
				index = int(n)
				continue
			}
			r.Skip()
		case "delta", "message":
			output = s.delta() || output
		case "text":
			output = notEmpty(r) || output
		case "token_ids": // with return_token_ids a token may have no text
			output = notEmpty(r) || output
		case "finish_reason":
			if r.Peek() == '"' {
				reason = finishName(r)
				continue
			}
			r.Skip()
		default:
			r.Skip()
		}
	}
	if output {
		s.FirstToken = true
		s.Deltas++
		f |= FrameToken
	}
	if reason != "" && s.end(index, reason) {
		f |= FrameFinish
	}
	return f
}

// end books the end of one choice and tells whether it was the last.
func (s *Stream) end(index int, reason string) bool {
	if index < 0 || index >= 64*len(s.ended) {
		return false
	}
	bit := uint64(1) << (index % 64)
	if s.ended[index/64]&bit != 0 {
		return false
	}
	s.ended[index/64] |= bit
	if s.Finished == 0 || index < s.lowest {
		s.Finish, s.lowest = reason, index
	}
	s.Finished++
	return s.Finished == max(s.N, 1)
}

// delta reads a delta, or a whole message, and tells whether it holds output. A role
// alone is none.
func (s *Stream) delta() (output bool) {
	r := &s.r
	if r.Peek() != '{' {
		r.Skip()
		return false
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal", "audio":
			output = notEmpty(r) || output
		default:
			r.Skip()
		}
	}
	return output
}

// notEmpty reads a value and tells whether it holds anything: null, "", [] and {} do
// not.
func notEmpty(r *Reader) bool {
	switch r.Peek() {
	case '"':
		raw, _ := r.str()
		return len(raw) > 0
	case '[', '{':
		s := r.Skip()
		return s.Present() && !emptyBrackets(s.Of(r.data))
	case 'n':
		r.Null()
		return false
	}
	r.Skip()
	return true
}

// finishName returns the finish reason without a copy where it is a known one.
func finishName(r *Reader) string {
	raw, _ := r.String()
	switch string(raw) {
	case "stop":
		return "stop"
	case "length":
		return "length"
	case "tool_calls":
		return "tool_calls"
	case "function_call":
		return "function_call"
	case "content_filter":
		return "content_filter"
	case "abort":
		return "abort"
	case "error":
		return "error"
	}
	return string(raw)
}

func (s *Stream) usage() {
	if !s.HasUsage {
		s.Usage, s.HasUsage = NoUsage, true
	}
	r, u := &s.r, &s.Usage
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "prompt_tokens":
			tokens(r, &u.PromptTokens)
		case "completion_tokens":
			tokens(r, &u.CompletionTokens)
		case "prompt_tokens_details":
			s.details("cached_tokens", &u.CachedTokens)
		case "completion_tokens_details":
			s.details("reasoning_tokens", &u.ReasoningTokens)
		case "reasoning_tokens": // SGLang
			tokens(r, &u.ReasoningTokens)
		default:
			r.Skip()
		}
	}
}

// timings reads llama.cpp's own account of the prompt, unless usage says it.
func (s *Stream) timings() {
	r := &s.r
	if s.HasUsage || r.Peek() != '{' {
		r.Skip()
		return
	}
	u, computed := NoUsage, -1
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "cache_n":
			tokens(r, &u.CachedTokens)
		case "prompt_n":
			tokens(r, &computed)
		case "predicted_n":
			tokens(r, &u.CompletionTokens)
		default:
			r.Skip()
		}
	}
	if u.CachedTokens >= 0 && computed >= 0 {
		u.PromptTokens = u.CachedTokens + computed
		s.Usage, s.HasUsage = u, true
	}
}

func (s *Stream) details(name string, n *int) {
	r := &s.r
	if r.Peek() != '{' {
		r.Skip()
		return
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) == name {
			tokens(r, n)
			continue
		}
		r.Skip()
	}
}

// maxTokens is the largest count that is believed: one nonsense number would spoil a
// counter for good.
const maxTokens = 1 << 31

func tokens(r *Reader, n *int) {
	if r.Peek() != '0' {
		r.Skip()
		return
	}
	if i, ok := r.Int(); ok && i >= 0 && i <= maxTokens {
		*n = int(i)
	}
}

// ParseResponse reads a whole response body into s, which it resets for n choices.
// The error says that the body is not JSON; what came before the fault counts.
func ParseResponse(body []byte, n int, s *Stream) error {
	s.Reset(n)
	s.read(body)
	s.r.data = nil // s must not keep the body
	return s.r.err
}
