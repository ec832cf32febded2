// Package openai reads the OpenAI wire format without rewriting it. It answers the
// question "what does this body or stream say, and where?".
//
//	request body ──ParseRequest──▶ Request (values, and offsets into the body)
//	                                  │
//	                   Edit ──Rewrite─┴──▶ body with those bytes spliced, all others equal
//
//	response bytes ──Scanner──▶ Event ──Stream.Observe──▶ first token, finish, usage
//	   any chunking              one SSE event
//
// A body is walked once, by Reader, and never re-encoded: clients send fields that
// no Go struct knows, and engines read them. Strings in Request are copies; a Span is
// a pair of offsets into the body it was parsed from and means nothing once that body
// has changed.
//
// A key that this package reads may occur once: engines keep the last of two equal
// keys, so a body with both would be routed as one prompt and run as another.
//
// Nothing here opens a connection, starts a goroutine or keeps a global. Request,
// Scanner and Stream are for one goroutine at a time and are meant to be used again.
package openai
