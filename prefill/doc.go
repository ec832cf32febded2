// Package prefill warms the next turn of a conversation while its user reads. It answers
// the question "what do we warm, when, and did it pay?".
//
//	request ──▶ Arrived ──────────────▶ cancels the warm-up of this conversation, if it waits
//	               │                    or is under way; Finish settles it
//	stream  ──▶ Turn.Observe            the assistant message, as the client will echo it
//	               │
//	end     ──▶ Turn.Finish ──▶ queue ──▶ body ──▶ gates ──▶ Sender ──▶ worker
//	                              │         │        │
//	                          drop oldest   │        └─ gain, cost, load, budget, learning, holdout
//	                                        └─ client's own body, reply as it is echoed, a stub message
//
// Rendered twice, with different stubs, the body shows which tokens every next turn starts
// with, reasoning stripped or not: their ids are sent, in whole blocks, where the engine
// takes ids and nothing else in the body matters to its cache. Otherwise, or where the
// worker refuses them, the body itself is sent, with max_tokens 1, and the engine's template
// renders it. The stub makes the last message one of the user or of a tool, as it will be
// then. When the next turn comes, its prompt is compared with what was warmed.
//
// A conversation is known by its messages: the next turn is the first request that
// starts with exactly those and adds at least two. Every turn that was wanted ends in one
// outcome: used, late, cancelled, wasted, unmeasured, failed, skipped or held out. Of
// those that would be warmed, a random share is held out; the difference of the two
// groups' TTFT is what warming saves.
//
// Prefixes that conversations share, or wait with, are warmed at other events, by token
// ids only and in nobody's name:
//
//	worker healthy ──┬▶ Join ────────▶ hottest heads ──┐
//	its cache lost ──┘                                 │
//	request routed ──▶ Turn.Routed ──▶ head, if paid ──┼─▶ copy ──▶ gates ──▶ Sender ──▶ worker
//	each second ─────▶ evicted? ─────▶ conversation ───┘
//
// Other proxies of the same workers are told of the warm-ups whose next turn is still to
// come, and tell of theirs:
//
//	Outstanding ──▶ peers ──▶ Elsewhere ──▶ Turn.Routed: it is the next turn of a peer's ──▶ Meet ──▶ its Met
//
// Contract: Arrived, Observe, Finish, Routed, Join, Yield and Met never wait, neither for a
// worker nor for a queue; Run starts every goroutine and waits for it. A warm-up that fails,
// or is never sent, moves a counter and nothing else. At most one of a conversation is under
// way at a time; it gives way to every client's request that is routed to its rank (Yield)
// and goes on later, is not repeated after a failure, and ends within a minute of its turn.
// Bodies are held no longer than that, tokens of heads and, with Rewarm, of conversations
// longer, all under a byte cap; none are in a log, metric or debug page. A look at a worker
// and the booking there are one step (Prefiller.admit).
//
// "Speculative prefill" here is this warming, not draft-model sparse prefill.
package prefill
