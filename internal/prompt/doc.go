// Package prompt makes the identity of a request's prompt. It answers the question
// "which prefix does this request have, in tokens if anybody can tell, else in text?".
//
//	                      ┌─ token ids in the body ─────────────────────────▶ client
//	Request, body ─▶ Build├─ Source (an engine's tokenizer) ─ cache, 50 ms ─▶ engine
//	                      └─ canonical form ─ 256-byte text blocks ─────────▶ text
//
// Every prompt gets text blocks; tokens come on top where a source gives them within
// the deadline. Build never fails and never waits longer than that: what it could not
// learn is the Reason of the result, and a late answer is cached for the next turn. What
// this process renders and tokenises itself is bounded in time, text and values (limits.go).
//
// There is one canonical form for every endpoint: the fields that change how the
// engine renders, the tools, then the messages in order with their roles. Two bodies
// that render alike have the same form, whatever the spacing, escapes, key order, or
// the shape of their content; sampling fields have no part in it. It is append-only: the form of a
// conversation is a prefix of the form of its next turn.
//
// Token ids in a Prompt are shared with the cache and must not be changed. The bytes
// of prompts are hashed and forgotten; only token ids stay. Builder is safe for
// concurrent use; Close waits for the calls that outlived their request.
package prompt
