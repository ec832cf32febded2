// Package testcluster runs the real router over simulated engines in virtual time. It
// answers the question "where do requests go, and what does that cost everybody?" in
// seconds of wall time, without a socket and the same way every time.
//
//	conversations ─▶ clients ──prompt──▶ router ──lease──▶ sim.Engine × N
//	                   ▲                   ▲                  │    │
//	                   │                 index ◀─ Translator ◀┘    │
//	                   │                        delay   KV events  │
//	                   └──────── tokens, FirstToken, Done ◀────────┘
//
// Everything between the client's prompt and the engine's step is the product's own
// code: kv.Prompt hashes the tokens, router.Route chooses, the engine's events pass
// the translator and reach the index EventDelay after the step that made them. Only
// HTTP, ZMQ and NATS are left out: their time is ClientDelay, EventDelay and, between
// proxies that tell each other their bookings, BookingDelay.
//
// One goroutine owns a run: a heap of events ordered by (virtual time, insertion), so
// a run is a pure function of its Config and Workload. Times are virtual unless they
// say wall.
//
// A closed loop has Concurrency clients; each takes the next conversation of the
// workload, plays its turns in order (a turn is sent when the one before has finished
// and its think time has passed) and then takes another. An open loop (Concurrency 0)
// starts every conversation at its Arrival.
//
// It measures what the engine says (cached tokens) and what the client sees (TTFT,
// TPOT, E2E), never the router's own opinion of itself.
package testcluster
