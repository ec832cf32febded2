package openai

// Edit says which of the fields that the proxy owns change on the way upstream. The
// zero Edit changes nothing.
type Edit struct {
	Model        string // replaces the model's name; "" keeps it
	IncludeUsage bool   // makes a streaming request ask for usage
	RemoveHints  bool   // takes nvext.agent_hints.speculative_prefill out
	CacheSalt    string // replaces cache_salt or adds it; "" keeps what is there
}

// Needed tells whether the edit changes the body that v was parsed from.
func (e Edit) Needed(v *Request) bool {
	return e.Model != "" && e.Model != v.Model || e.usage(v) || e.RemoveHints && v.hint.Present() || e.salt(v)
}

func (e Edit) usage(v *Request) bool { return e.IncludeUsage && v.Stream && !v.IncludeUsage }

func (e Edit) salt(v *Request) bool { return e.CacheSalt != "" && e.CacheSalt != v.CacheSalt }

// patch replaces the bytes of one span.
type patch struct {
	Span
	text   string
	quoted bool // text is written as a JSON string
	member bool // text is the value of cache_salt, which the body lacks
}

// Rewrite appends body, which v was parsed from, with e applied. Every byte outside
// the edited fields stays as the client sent it: order, spacing, escapes, numbers and
// unknown fields. v describes body, not the result.
func Rewrite(dst, body []byte, v *Request, e Edit) []byte {
	var list [4]patch
	patches := list[:0]
	if e.Model != "" && e.Model != v.Model {
		patches = append(patches, patch{Span: v.model, text: e.Model, quoted: true})
	}
	if e.usage(v) {
		patches = append(patches, usagePatch(body, v))
	}
	if e.RemoveHints && v.hint.Present() {
		patches = append(patches, patch{Span: v.hint})
	}
	switch {
	case !e.salt(v):
	case v.cacheSalt.Present(): // another one, or null
		patches = append(patches, patch{Span: v.cacheSalt, text: e.CacheSalt, quoted: true})
	default:
		patches = append(patches, patch{Span: Span{v.open, v.open}, text: e.CacheSalt, member: true})
	}
	for i := 1; i < len(patches); i++ {
		for j := i; j > 0 && patches[j].Start < patches[j-1].Start; j-- {
			patches[j], patches[j-1] = patches[j-1], patches[j]
		}
	}
	at := 0
	for _, p := range patches {
		dst = append(dst, body[at:p.Start]...)
		switch {
		case p.member:
			dst = append(AppendString(append(dst, `"cache_salt":`...), p.text), ',')
		case p.quoted:
			dst = AppendString(dst, p.text)
		default:
			dst = append(dst, p.text...)
		}
		at = p.End
	}
	return append(dst, body[at:]...)
}

// usagePatch returns the smallest splice that sets stream_options.include_usage.
func usagePatch(body []byte, v *Request) patch {
	switch {
	case v.includeUsage.Present(): // false or null
		return patch{Span: v.includeUsage, text: "true"}
	case !v.streamOptions.Present():
		return patch{Span: Span{v.open, v.open}, text: `"stream_options":{"include_usage":true},`}
	case body[v.streamOptions.Start] == 'n':
		return patch{Span: v.streamOptions, text: `{"include_usage":true}`}
	}
	inside := v.streamOptions.Start + 1
	if v.emptyStreamOptions {
		return patch{Span: Span{inside, inside}, text: `"include_usage":true`}
	}
	return patch{Span: Span{inside, inside}, text: `"include_usage":true,`}
}
