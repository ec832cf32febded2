// Package bench is a multi-turn client for any OpenAI endpoint. It answers the question
// "did it help?".
//
//	Config ──plan──▶ users: texts, think times, starts      (seed; no salt in it)
//	                   │ one goroutine a user, closed loop
//	                   ▼
//	   messages ──go-openai──▶ doer ──────────▶ endpoint
//	                            │ stamps the send, splices what its types cannot say
//	                            ▼
//	   raw SSE bytes ──internal/openai──▶ first token, first visible output, last token
//	                   │
//	                   ▼
//	   report.Record ──▶ report.Run (Run)   or   blocks ABBA BAAB ──▶ report.AB (AB)
//
// A conversation sends its system line and first message, appends the answer that really
// came, thinks, and sends the next. A turn is due when the one before has ended and its
// think time has passed. A failed turn ends its conversation: nothing of it reaches a
// later history. TTFT runs from before the write; every interval is a difference of
// monotonic times.
//
// The texts start with a salt, so that no run finds what another left in a cache; lengths
// and think times do not depend on it. AB gives each block its own salt.
//
// The client knows no proxy: hints are request fields and headers that an endpoint may
// ignore, and response headers are read where they are.
package bench
