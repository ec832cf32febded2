// Package router picks the worker for a request. It answers the question "where does
// this request's first token come soonest, without hurting the others?".
//
//	           chain                          leases in flight
//	Request ─────────▶ overlap ─────▶ cost ◀──── load ◀──── FirstToken, Progress, Done
//	                     ▲             │                        ▲
//	workers ─events─▶ index            ▼                        │
//	                               Decision ─▶ Lease ───────▶ proxy
//
// Every term of the cost is in seconds and the lowest sum wins:
//
//	cost = wait + P + ½·F·L·ΔITL + ¼·n·P + E
//
//	wait   prefill booked there before ours, and the wait for a sequence slot
//	P      our own prefill: tokens that the worker does not hold, over its rate R
//	F·L    output tokens to come: expected turns times expected tokens a turn
//	ΔITL   what one more sequence adds to the time between tokens there
//	¼·n·P  the stall that our prefill causes to the n sequences there
//	E      prefill that others must repeat for the blocks that ours evicts
//
// One request in many is not routed by its own cost: where a shared head keeps a worker
// crowded, it is computed once more elsewhere as soon as the waits that it caused exceed
// the price of the copy (rents). Where somebody copies heads ahead of requests
// (Config.Copies), the same account pays for that (Decision.Copy, Copied). A worker whose
// cache is being filled (SetWarming) is left out while others can take the request.
//
// A worker whose breaker is not closed is a candidate only where the model has no better
// one (Breaker): a bad worker's cost is no measure of what it does to a request.
//
// n counts every sequence in flight on the worker: those booked ahead of us decode
// by the time our prefill runs. R, the ITL fit, L, F and the age scale τ of E are
// measured from leases; nothing is a weight that somebody has to set.
//
// What other proxies have booked (Book) stands in the same queues and counts in every
// term and measure as own bookings do, but for max_inflight; Bookings tells them ours.
//
// Who cannot be served at once waits in Route, in a bounded queue with three classes of
// priority, where the tenants of a class share what becomes free by tokens:
//
//	no slot    every candidate is at its limit of requests in flight
//	no room    a first turn, while live contexts exceed 0.9 of the pool's KV capacity and
//	           the engines have no time to compute evicted ones again; later turns pass
//
// Live are the contexts of requests in flight and those of conversations that are expected
// back. What becomes free calls one waiter and is kept for it until it has chosen.
//
// Contract: a request is booked under the lock that chose its worker, so a burst
// never herds; the booking ends in Done, on every path, exactly once. No booking is
// reaped by time. Overlap is counted in whole blocks and turned to tokens by the
// worker's own block size. Route never waits for the event feed.
//
// The package starts no goroutine, but for a timer while first turns wait, and knows no
// HTTP, no NATS and no OpenAI type.
package router
