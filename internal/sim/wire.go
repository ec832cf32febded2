package sim

import (
	"encoding/json"
	"strconv"
)

// head appends the start of an SSE event up to the choices.
func (a *answer) head(dst []byte, id, kind string) []byte {
	dst = append(dst, `data: {"id":`...)
	dst = append(dst, quote(id)...)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, a.created, 10)
	dst = append(dst, `,"model":`...)
	dst = append(dst, quote(a.model)...)
	return append(dst, ',')
}

// tail ends an SSE event after its choices. SGLang always names usage.
func (a *answer) tail(dst []byte) []byte {
	switch {
	case a.req.StreamOptions.IncludeUsage && a.req.StreamOptions.ContinuousUsage:
		dst = append(dst, `,"usage":`...)
		dst = a.appendUsage(dst)
	case a.sglang():
		dst = append(dst, `,"usage":null`...)
	}
	return append(dst, "}\n\n"...)
}

func appendFinish(dst []byte, finish string) []byte {
	if finish == "" {
		return append(dst, "null"...)
	}
	return append(append(append(dst, '"'), finish...), '"')
}

func (a *answer) stopField(dst []byte, finish string) []byte {
	switch {
	case !a.sglang():
		return append(dst, `,"stop_reason":null`...)
	case finish == "" || finish == "length":
		return append(dst, `,"matched_stop":null`...)
	}
	dst = append(dst, `,"matched_stop":`...)
	return strconv.AppendUint(dst, uint64(tokEnd), 10)
}

func (a *answer) tokenIDs(dst []byte, ids []uint32) []byte {
	if !a.req.ReturnTokenIDs || a.sglang() {
		return dst
	}
	return appendIDs(append(dst, `,"token_ids":`...), ids)
}

func appendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}

// appendUsage appends the usage so far. vLLM names cached tokens whenever it is told
// to report them, SGLang only where there are some.
func (a *answer) appendUsage(dst []byte) []byte {
	u := a.gen.usage(a.copies)
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.prompt), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.prompt+u.output), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.output), 10)
	dst = append(dst, `,"prompt_tokens_details":`...)
	if a.server.cfg.HideCached || a.sglang() && u.cached == 0 {
		return append(dst, "null}"...)
	}
	dst = append(dst, `{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.cached), 10)
	return append(dst, "}}"...)
}

// quote returns s as a JSON string.
func quote(s string) string {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
			b, _ := json.Marshal(s)
			return string(b)
		}
	}
	return `"` + s + `"`
}
