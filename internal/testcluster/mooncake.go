package testcluster

import "github.com/warmroute/warmroute/bench/trace"

// Mooncake returns the rows of a trace as an open loop: every row is a conversation of
// one turn at its timestamp, whose tokens follow from its hash ids. Where a row follows
// up an earlier one, the answer in its history has the ids of the trace, not the tokens
// that this cluster generated: generated blocks are never hit.
func Mooncake(rows []trace.Request) Workload {
	w := Workload{Name: "mooncake"}
	for i := range rows {
		row := &rows[i]
		w.Conversations = append(w.Conversations, Conversation{
			ID: uint64(i), Arrival: row.Time,
			Turns: []Turn{{InputTokens: row.InputTokens, OutputTokens: max(row.OutputTokens, 1)}},
			Input: func(history []uint32, _ int) []uint32 { return row.Tokens(history, trace.DefaultBlockTokens) },
		})
	}
	return w
}
