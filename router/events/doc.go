// Package events carries the KV events of engines to the index of every proxy. It
// answers the question "what does each worker hold right now, and can we trust it?".
//
//	engine ──ZMQ──▶ Relay: Translator ─▶ deltas ──NATS──▶ Consumer ─▶ router/index
//	                  │       (ring)       │                  │
//	                  └─ announcements ────┼──────────────────┤  every 2 s
//	                     state (snapshot) ◀┴── resync ────────┘  after a gap
//
// A Relay is the source of truth for one worker. It numbers its deltas from 1 within an
// epoch, and the state before delta 1 is empty; a restart of the engine or of the relay
// starts another epoch. A Consumer applies the deltas of one (relay id, epoch) per
// worker rank in order, and asks the relay's state when it misses one. Until the answer
// is there the index keeps the last consistent state minus the removals received, so a
// fault costs credit, never invents it.
//
// Coverage says how far the state may be trusted: complete when the stream was followed
// from its first event, or from a clear, else partial, with a reason that names the
// engine flag that mends it.
//
// Peers carries bookings instead of events: what each proxy has booked on the workers,
// so that all of them see one load. There a lost message is not asked for: the full
// state every 2 s mends it.
//
// The protocol is docs/protocol.md. New starts no goroutine; Run waits for those it
// starts. Callbacks are never called under a lock and must not block for long.
package events
