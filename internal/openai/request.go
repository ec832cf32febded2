package openai

// Kind is the endpoint that a request came in by.
type Kind uint8

// The endpoints whose bodies are read.
const (
	Chat        Kind = iota // /v1/chat/completions
	Completions             // /v1/completions
)

// String returns the kind's name as metrics and JSON print it.
func (k Kind) String() string {
	if k == Completions {
		return "completions"
	}
	return "chat"
}

// RequestError is a fault of the client's body: it becomes a 400.
type RequestError struct {
	Param   string // the field at fault as OpenAI names it, "" for the whole body
	Message string // what is wrong and what was expected; holds no prompt text
}

// Error returns the message.
func (e *RequestError) Error() string { return e.Message }

// Message is one element of messages.
type Message struct {
	Span
	Role    string
	Content Span // absent where the message has none or it is null
	Other   bool // has members beside role and content that are not null
	Media   bool // a content part is not text: an image, audio, video or file
}

// Request is what a body says about routing it. ParseRequest fills it; the zero value
// is ready. Strings and PromptTokens are copies and stay valid; a Span is a pair of
// offsets into the body that was parsed.
type Request struct {
	Kind Kind

	Model           string
	Stream          bool
	IncludeUsage    bool   // stream_options.include_usage
	MaxTokens       int    // max_completion_tokens, else max_tokens; -1 where neither is set
	N               int    // choices asked for, ≥ 1
	CacheSalt       string // "" is no salt
	PromptCacheKey  string
	User            string
	Priority        int
	FirstTurn       bool // a chat that has no assistant message yet
	Tools           bool // at least one tool is offered
	Multimodal      bool // some part of the prompt is not text
	FirstMedia      int  // index of the first message that is not all text, -1 for none
	HintSpeculative *bool
	// OutputTokensHint is nvext.agent_hints.osl, 0 where it is absent.
	OutputTokensHint int

	// Messages is the conversation of a chat.
	Messages []Message

	// Prompt is the first prompt of a completion that is text, PromptTokens the first
	// that is token ids. PromptCount is the number of prompts in the body.
	Prompt       Span
	PromptTokens []uint32
	PromptCount  int
	PromptEmbeds bool // the prompt is embeddings: it has no readable identity

	// Template holds the fields that change how the engine renders the prompt, absent
	// where they are null.
	Template struct {
		Tools, Functions, ToolChoice        Span
		ChatTemplate, Kwargs                Span
		ReasoningEffort, Reasoning          Span
		Thinking, EnableThinking            Span
		Documents                           Span
		AddGenerationPrompt                 Span
		ContinueFinalMessage                Span
		AddSpecialTokens                    Span
		ResponseFormat, MMProcessor, Suffix Span
		ParallelToolCalls                   Span
		TruncatePromptTokens                Span // vLLM
		TruncationSide                      Span // vLLM
		KVTransfer                          Span // vLLM
		InputIDs, SessionParams             Span // SGLang
	}

	model, streamOptions, includeUsage, hint Span
	cacheSalt                                Span
	emptyStreamOptions                       bool
	open                                     int // offset just behind the body's opening brace
	maxCompletionTokens                      int
	seen                                     uint64
	r                                        Reader
}

// reset forgets the last body and keeps the memory, except what a rare large one left.
func (v *Request) reset(kind Kind) {
	if cap(v.Messages) > 1<<14 {
		v.Messages = nil
	}
	if cap(v.PromptTokens) > 1<<18 {
		v.PromptTokens = nil
	}
	*v = Request{
		Kind: kind, Model: v.Model, CacheSalt: v.CacheSalt, PromptCacheKey: v.PromptCacheKey, User: v.User,
		Messages: v.Messages[:0], PromptTokens: v.PromptTokens[:0],
		MaxTokens: -1, maxCompletionTokens: -1, N: 1, FirstMedia: -1, r: v.r,
	}
}
