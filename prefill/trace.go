package prefill

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
)

// traceMember marks a warm-up in tracestate.
const traceMember = "warmroute=prefill"

// maxTraceMembers bounds tracestate (W3C Trace Context, 3.3.1.1).
const maxTraceMembers = 32

// appendTrace appends the trace context of a warm-up: it is part of the trace of the turn
// that it follows, as an operation of its own. As W3C Trace Context demands of whoever
// changes tracestate, parent-id is a fresh one (3.4); trace-id and flags stay, and the
// members of others stay in their order behind ours. A client's traceparent that cannot be
// read takes its tracestate with it (2.3), and without one there is no trace.
func appendTrace(dst, header []byte) []byte {
	var parent, state []byte
	parents := 0
	for line := range bytes.Lines(header) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(bytes.ToLower(bytes.TrimSpace(name))) {
		case "traceparent":
			parent = value
			parents++
		case "tracestate": // several are one list
			if len(state) > 0 {
				state = append(state, ',')
			}
			state = append(state, value...)
		}
	}
	if parents != 1 || !validParent(parent) {
		return dst
	}
	dst = fmt.Appendf(dst, "traceparent: 00-%s-%016x-%s\r\n", parent[3:35], rand.Uint64()|1, parent[53:55])
	dst = append(append(dst, "tracestate: "...), traceMember...)
	members := 1
	for m := range bytes.SplitSeq(state, []byte(",")) {
		m = bytes.TrimSpace(m)
		if len(m) == 0 || bytes.HasPrefix(m, []byte("warmroute=")) || members == maxTraceMembers {
			continue
		}
		members++
		dst = append(append(dst, ','), m...)
	}
	return append(dst, "\r\n"...)
}

// validParent tells whether a traceparent can be read: 00-<32 hex>-<16 hex>-<2 hex>, or a
// later version that begins like that.
func validParent(v []byte) bool {
	if len(v) < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || len(v) > 55 && (string(v[:2]) == "00" || v[55] != '-') || string(v[:2]) == "ff" {
		return false
	}
	for _, part := range [][]byte{v[:2], v[3:35], v[36:52], v[53:55]} {
		if _, err := hex.Decode(make([]byte, len(part)/2), part); err != nil || !bytes.Equal(part, bytes.ToLower(part)) {
			return false
		}
	}
	return len(bytes.Trim(v[3:35], "0")) > 0 && len(bytes.Trim(v[36:52], "0")) > 0
}
