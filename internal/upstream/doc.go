// Package upstream holds the fleet of workers: who they are, whether they are well, what
// they serve, and one HTTP exchange with one of them. It answers the question "which
// workers are there, and how do I talk to this one?".
//
//	config, reload ─┐                       ┌─▶ router (workers, health, feeds)
//	announcements ──┼─▶ Fleet ◀── probes ───┤
//	KV event feeds ─┘     │                 └─▶ in-process relays (their models)
//	                      ▼
//	proxy ── Request ──▶ Worker.Do ──▶ Response ──▶ proxy (one Read = all that arrived)
//	                      ▲
//	prompt ── body ──▶ Tokenize (the engine's own tokenizer)
//
// An exchange has three limits and no total one: connect_timeout, first_byte_timeout from
// the request to the first byte of the answer's body, and idle_timeout between reads.
// Ending its context closes the connection under a blocked read or write; that is how a
// client that left ends a generation.
//
// Health is active and passive: every engine is polled on the endpoint that does not make
// it generate, and a failed connect counts at once. Whatever that says, a breaker watches
// how the generations of clients end, and tells the router whom to avoid: it is about an
// engine that is dead behind a front end that is not. A worker that is known by a NATS
// announcement alone is used only if its host is allowed by name or CIDR.
//
// Doctor runs the same exchanges once, for people, and names the flags that are missing.
//
// What this package does not do: choose a worker, retry on another one, or shape an error
// for a client. NewFleet starts nothing; Run waits for every goroutine that it started.
package upstream
