// Package index answers the question "which worker holds how much of this prompt?".
//
//	KV events ──Apply──▶ Exact ────────┐
//	                                   │
//	routed prompts ─Learn▶ Approximate ├──Overlap──▶ []kv.Overlap, one per worker
//	                                   │
//	in-flight prompts ─Add▶ Predicted ─┘
//
// A Set owns one Exact index per block size, one Approximate index of text blocks and
// one table of Predicted entries, under one configuration. All three speak sequence
// hashes (package kv): one hash names a whole prefix, so equal hashes at one position
// of two chains prove that everything before is equal too.
//
// Exact is a radix tree whose edges are found by hash. An edge is a run: consecutive
// hashes of one path, at most 1,024. A table maps each hash to its run and offset, and
// each run has, per tier, the intervals of offsets that workers hold:
//
//	table                 run 7                               intervals (GPU)
//	h3 ──▶ run 7, 0       parent h2 · h3 h4 h5 h6             worker 0: 0..3
//	h5 ──▶ run 7, 2  ──▶  a branch at h4 is another run,  ──▶ worker 4: 0..1, 3..3
//	x5 ──▶ run 9, 0       with parent h4                      worker 5: 0..1
//
// The invariant: a hash is in the table if and only if it sits at exactly one position
// of one run. Only a run's tail that nobody holds leaves, from table and run together;
// a middle that nobody holds stays until then, so that a block that returns finds its
// place. Runs never split, and holes are simply two intervals.
//
// Overlap never credits a block that was not stored on that worker in that tier, holes
// included. A block counts only if all blocks before it count.
//
// Everything is bounded. At the bytes cap the exact indexes refuse blocks and count
// them; nothing that is held is dropped to make room. The approximate index evicts by
// age, predictions expire. No query allocates, and nothing here starts a goroutine.
//
// This package does not decide which worker is best, does not know what a token is,
// and does not repair a feed that lost events: package events does.
package index
