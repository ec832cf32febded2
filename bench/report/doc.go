// Package report turns measured turns into tables, files and verdicts. It answers the
// question "what may be said about these measurements?".
//
//	bench ──Record──▶ Run ──Summarise──▶ tables · JSON (Dynamo's keys and ours)
//	                   │
//	       two files ──┴──Compare──▶ per-turn ratios, or a refusal
//
//	bench ──Block──▶ AB ──Judge──▶ log ratio of each pair of blocks
//	                                  │  t-interval, hierarchical bootstrap: the wider
//	                                  ▼
//	      better · worse · no detectable difference · not comparable (reason)
//
// Everything is computed from the records, so a file can be judged again by a later
// version. Percentiles are type 7: linear between order statistics of the raw values.
// Times are offsets from a monotonic start or intervals, in microseconds in files. A
// token count that the endpoint did not say is nil, never zero. Turns are numbered from
// 0 in files, as Dynamo's multiturn_bench does, and from 1 where people read them.
//
// Nothing here measures, opens a connection or starts a goroutine.
package report
