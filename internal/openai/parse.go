package openai

import (
	"bytes"
	"fmt"
	"math"
)

// field numbers the members of a body that are read.
type field uint8

const (
	fNone field = iota
	fModel
	fStream
	fStreamOptions
	fMaxTokens
	fMaxCompletionTokens
	fN
	fMessages
	fPrompt
	fPromptEmbeds
	fCacheSalt
	fPromptCacheKey
	fUser
	fPriority
	fNvext
	fTools
	fFunctions
	fToolChoice
	fChatTemplate
	fKwargs
	fReasoningEffort
	fReasoning
	fThinking
	fEnableThinking
	fDocuments
	fAddGenerationPrompt
	fContinueFinalMessage
	fAddSpecialTokens
	fResponseFormat
	fMMProcessor
	fSuffix
	fParallelToolCalls
	fTruncatePromptTokens
	fTruncationSide
	fKVTransfer
	fInputIDs
	fSessionParams
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "model":
		return fModel
	case "stream":
		return fStream
	case "stream_options":
		return fStreamOptions
	case "max_tokens":
		return fMaxTokens
	case "max_completion_tokens":
		return fMaxCompletionTokens
	case "n":
		return fN
	case "messages":
		return fMessages
	case "prompt":
		return fPrompt
	case "prompt_embeds":
		return fPromptEmbeds
	case "cache_salt":
		return fCacheSalt
	case "prompt_cache_key":
		return fPromptCacheKey
	case "user":
		return fUser
	case "priority":
		return fPriority
	case "nvext":
		return fNvext
	case "tools":
		return fTools
	case "functions":
		return fFunctions
	case "tool_choice":
		return fToolChoice
	case "chat_template":
		return fChatTemplate
	case "chat_template_kwargs":
		return fKwargs
	case "reasoning_effort":
		return fReasoningEffort
	case "reasoning":
		return fReasoning
	case "thinking":
		return fThinking
	case "enable_thinking":
		return fEnableThinking
	case "documents":
		return fDocuments
	case "add_generation_prompt":
		return fAddGenerationPrompt
	case "continue_final_message":
		return fContinueFinalMessage
	case "add_special_tokens":
		return fAddSpecialTokens
	case "response_format":
		return fResponseFormat
	case "mm_processor_kwargs":
		return fMMProcessor
	case "suffix":
		return fSuffix
	case "parallel_tool_calls":
		return fParallelToolCalls
	case "truncate_prompt_tokens":
		return fTruncatePromptTokens
	case "truncation_side":
		return fTruncationSide
	case "kv_transfer_params":
		return fKVTransfer
	case "input_ids":
		return fInputIDs
	case "session_params":
		return fSessionParams
	}
	return fNone
}

// ParseRequest reads one body into v, replacing what v held. The error is a
// *RequestError. The whole body is checked to be JSON; members that are not read are
// of no concern.
func ParseRequest(kind Kind, body []byte, v *Request) error {
	v.reset(kind)
	r := &v.r
	defer func() { r.data = nil }() // a pooled v must not keep the body
	at := Span{0, len(body)}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		at.Start = 3
	}
	r.Reset(body, at)
	if err := v.members(); err != nil {
		return err
	}
	if r.err != nil {
		return &RequestError{Message: "request body is not valid JSON: " + r.err.Error()}
	}
	if r.space(); r.pos < len(body) {
		r.fail("expected nothing behind the body's object")
		return &RequestError{Message: "request body is not valid JSON: " + r.err.Error()}
	}
	return v.finish()
}

func (v *Request) members() error {
	r := &v.r
	if r.Peek() != '{' {
		if r.err != nil {
			return nil
		}
		return &RequestError{Message: "request body: expected a JSON object"}
	}
	r.Object()
	v.open = r.pos
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		f := fieldOf(key)
		if f == fNone {
			r.Skip()
			continue
		}
		if v.seen&(1<<f) != 0 {
			return duplicate(string(key), string(key))
		}
		v.seen |= 1 << f
		if err := v.read(f); err != nil {
			return err
		}
	}
	return nil
}

func duplicate(param, where string) error {
	return &RequestError{Param: param, Message: where + ": given twice; send it once"}
}

func wrongType(param, where, want string) error {
	return &RequestError{Param: param, Message: where + ": expected " + want}
}

// read reads the value of one known member.
func (v *Request) read(f field) error {
	r := &v.r
	t := &v.Template
	switch f {
	case fModel:
		v.model.Start = r.peekPos()
		if err := v.text("model", &v.Model); err != nil {
			return err
		}
		v.model.End = r.pos
	case fStream:
		return v.flag("stream", &v.Stream)
	case fStreamOptions:
		return v.readStreamOptions()
	case fMaxTokens:
		return v.whole("max_tokens", &v.MaxTokens)
	case fMaxCompletionTokens:
		return v.whole("max_completion_tokens", &v.maxCompletionTokens)
	case fN:
		return v.whole("n", &v.N)
	case fPriority:
		return v.whole("priority", &v.Priority)
	case fMessages:
		if v.Kind == Chat {
			return v.readMessages()
		}
		r.Skip()
	case fPrompt:
		if v.Kind == Completions {
			return v.readPrompt()
		}
		r.Skip()
	case fPromptEmbeds:
		v.PromptEmbeds = !r.Null()
		if v.PromptEmbeds {
			r.Skip()
		}
	case fCacheSalt:
		v.cacheSalt.Start = r.peekPos()
		if err := v.text("cache_salt", &v.CacheSalt); err != nil {
			return err
		}
		v.cacheSalt.End = r.pos
	case fPromptCacheKey:
		return v.text("prompt_cache_key", &v.PromptCacheKey)
	case fUser:
		return v.text("user", &v.User)
	case fNvext:
		return v.readHints()
	case fTools:
		if k := r.Peek(); k != '[' && k != 'n' && k != 0 {
			return wrongType("tools", "tools", "an array")
		}
		v.keep(&t.Tools)
		v.Tools = t.Tools.Present() && !emptyBrackets(t.Tools.Of(r.data))
	case fFunctions:
		v.keep(&t.Functions)
	case fToolChoice:
		v.keep(&t.ToolChoice)
	case fChatTemplate:
		v.keep(&t.ChatTemplate)
	case fKwargs:
		v.keep(&t.Kwargs)
	case fReasoningEffort:
		v.keep(&t.ReasoningEffort)
	case fReasoning:
		v.keep(&t.Reasoning)
	case fThinking:
		v.keep(&t.Thinking)
	case fEnableThinking:
		v.keep(&t.EnableThinking)
	case fDocuments:
		v.keep(&t.Documents)
	case fAddGenerationPrompt:
		v.keep(&t.AddGenerationPrompt)
	case fContinueFinalMessage:
		v.keep(&t.ContinueFinalMessage)
	case fAddSpecialTokens:
		v.keep(&t.AddSpecialTokens)
	case fResponseFormat:
		v.keep(&t.ResponseFormat)
	case fMMProcessor:
		v.keep(&t.MMProcessor)
	case fSuffix:
		v.keep(&t.Suffix)
	case fParallelToolCalls:
		v.keep(&t.ParallelToolCalls)
	case fTruncatePromptTokens:
		v.keep(&t.TruncatePromptTokens)
	case fTruncationSide:
		v.keep(&t.TruncationSide)
	case fKVTransfer:
		v.keep(&t.KVTransfer)
	case fInputIDs:
		v.keep(&t.InputIDs)
	case fSessionParams:
		v.keep(&t.SessionParams)
	}
	return nil
}

// keep notes where a value stands that the prompt package reads, unless it is null.
func (v *Request) keep(s *Span) {
	if !v.r.Null() {
		*s = v.r.Skip()
	}
}

// emptyBrackets tells whether b, an array or object, has nothing inside.
func emptyBrackets(b []byte) bool {
	for _, c := range b[1 : len(b)-1] {
		if c > ' ' {
			return false
		}
	}
	return true
}

func (r *Reader) peekPos() int {
	r.Peek()
	return r.pos
}

// text reads a string or null. The old string is kept where it is equal: the same
// few models and salts come again, and this saves their copies.
func (v *Request) text(name string, s *string) error {
	r := &v.r
	switch r.Peek() {
	case '"':
		raw, escaped := r.str()
		if escaped {
			raw = Unescape(nil, raw)
		}
		if string(raw) != *s {
			*s = string(raw)
		}
	case 'n':
		r.Null()
		*s = ""
	case 0:
	default:
		return wrongType(name, name, "a string")
	}
	return nil
}

func (v *Request) flag(name string, b *bool) error {
	switch v.r.Peek() {
	case 't':
		*b = v.r.Bool()
	case 'n':
		v.r.Null()
	case 0:
	default:
		return wrongType(name, name, "true or false")
	}
	return nil
}

func (v *Request) whole(name string, n *int) error {
	switch v.r.Peek() {
	case '0':
		i, ok := v.r.Int()
		if !ok && v.r.err == nil {
			return wrongType(name, name, "a whole number")
		}
		*n = int(i)
	case 'n':
		v.r.Null()
	case 0:
	default:
		return wrongType(name, name, "a whole number")
	}
	return nil
}

func (v *Request) readStreamOptions() error {
	r := &v.r
	v.streamOptions.Start = r.peekPos()
	defer func() { v.streamOptions.End = r.pos }()
	if r.Null() {
		return nil
	}
	if k := r.Peek(); k != '{' && k != 0 {
		return wrongType("stream_options", "stream_options", "an object")
	}
	v.emptyStreamOptions = true
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		v.emptyStreamOptions = false
		if string(key) != "include_usage" {
			r.Skip()
			continue
		}
		if v.includeUsage.Present() {
			return duplicate("stream_options", "stream_options.include_usage")
		}
		v.includeUsage.Start = r.peekPos()
		if err := v.flag("stream_options.include_usage", &v.IncludeUsage); err != nil {
			return err
		}
		v.includeUsage.End = r.pos
	}
	return nil
}

// finish checks what only the whole body tells.
func (v *Request) finish() error {
	const model = 1 << fModel
	if v.seen&model == 0 || v.Model == "" {
		return &RequestError{Param: "model", Message: "model: missing; send the name of a model that /v1/models lists"}
	}
	for _, s := range []struct {
		f field
		s *string
	}{{fCacheSalt, &v.CacheSalt}, {fPromptCacheKey, &v.PromptCacheKey}, {fUser, &v.User}} {
		if v.seen&(1<<s.f) == 0 {
			*s.s = ""
		}
	}
	if v.maxCompletionTokens >= 0 {
		v.MaxTokens = v.maxCompletionTokens
	}
	v.MaxTokens = min(max(v.MaxTokens, -1), math.MaxInt32)
	v.N = max(v.N, 1)
	switch {
	case v.Kind == Chat && v.seen&(1<<fMessages) == 0:
		return &RequestError{Param: "messages", Message: "messages: missing; send an array with at least one message"}
	case v.Kind == Completions && v.PromptCount == 0 && !v.PromptEmbeds:
		return &RequestError{Param: "prompt", Message: "prompt: missing; send a string, an array of strings or token ids"}
	}
	return nil
}

func messageError(i int, what string) error {
	return &RequestError{Param: "messages", Message: fmt.Sprintf("messages[%d]%s", i, what)}
}
