package openai

// Model is one entry of /v1/models, with the fields that vLLM and SGLang add.
type Model struct {
	ID          string `json:"id"`
	Object      string `json:"object"` // "model"
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root,omitempty"`   // what the engine loaded
	Parent      string `json:"parent,omitempty"` // base model of a LoRA adapter
	MaxModelLen int    `json:"max_model_len,omitempty"`
}

// ModelList is the body of /v1/models.
type ModelList struct {
	Object string  `json:"object"` // "list"
	Data   []Model `json:"data"`
}

// AppendError appends an OpenAI error body. An empty param or code is null.
func AppendError(dst []byte, message, typ, param, code string) []byte {
	dst = AppendString(append(dst, `{"error":{"message":`...), message)
	dst = AppendString(append(dst, `,"type":`...), typ)
	dst = appendNullable(append(dst, `,"param":`...), param)
	dst = appendNullable(append(dst, `,"code":`...), code)
	return append(dst, '}', '}')
}

func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}
