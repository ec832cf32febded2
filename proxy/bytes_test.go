package proxy

import (
	"strings"
	"testing"
)

// TestFC18_LongEventsReachTheClient: the proxy stops reading an event that is too long for
// it, counts it, and passes every byte of it on.
func TestFC18_LongEventsReachTheClient(t *testing.T) {
	var stream []string
	w := startWorker(t, func(c *call) bool { c.stream(stream...); return true })
	r := newRig(t, setup{}, w)
	for i, size := range []int{70 << 10, 1200 << 10, 20 << 20} {
		stream = []string{delta("a"), delta(strings.Repeat("x", size)), finish + doneEnd}
		if _, got := r.post("", streamBody); got != strings.Join(stream, "") {
			t.Errorf("%d bytes: the client got %d bytes that differ, %.80q to %.80q", size, len(got), got, got[max(len(got)-80, 0):])
		}
		r.settled()
		if n := r.metric("warmroute_proxy_unread_events_total"); n != float64(i/2) {
			t.Errorf("%d bytes: %v events count as unread", size, n)
		}
	}
	r.stop()
}

// TestFC21_NoSecondAnswerAfterTheFirstByte: the worker dies after its first words and a
// healthy one stands beside it.
func TestFC21_NoSecondAnswerAfterTheFirstByte(t *testing.T) {
	dies := startWorker(t, func(c *call) bool {
		c.sse()
		c.chunk(delta("Here is the"))
		return false
	})
	healthy := startWorker(t, echo)
	r := newRig(t, setup{}, dies, healthy)
	for dies.calls.Load() == 0 {
		healthy.calls.Store(0)
		_, got, err := r.exchange(request(pathChat, "", streamBody))
		if dies.calls.Load() == 0 {
			continue // routed to the healthy worker
		}
		rest, ok := strings.CutPrefix(got, delta("Here is the")+"data: ")
		if err == nil || !ok || strings.Contains(got, "[DONE]") || parseError(t, rest).Message == "" {
			t.Errorf("the client got %q, %v", got, err)
		}
	}
	if n, m := dies.calls.Load(), healthy.calls.Load(); n != 1 || m != 0 {
		t.Errorf("%d requests to the worker that dies, %d to the healthy one", n, m)
	}
	r.stop()
}

// TestFC26_ResponseBytesAreTheWorkers: empty strings, nulls, unknown fields, spaces and the
// order of fields, in a stream and in a whole answer.
func TestFC26_ResponseBytesAreTheWorkers(t *testing.T) {
	const (
		first = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":null},"logprobs":null,"finish_reason":null}],"matched_stop":null}` + "\n\n"
		whole = `{"z":1.50,"choices":[ {"message":{"content":"","refusal":null,"tool_calls":[]},"index":0,"finish_reason":"stop"} ],"usage":null,"\u0061":1e2}`
	)
	w := startWorker(t, func(c *call) bool {
		if strings.Contains(string(c.body), `"stream":true`) {
			c.stream(first, finish, doneEnd)
		} else {
			c.json(200, "", whole)
		}
		return true
	})
	r := newRig(t, setup{}, w)
	if _, got := r.post("", streamBody); got != first+finish+doneEnd {
		t.Errorf("the stream became %q", got)
	}
	if _, got := r.post("", plainBody); got != whole {
		t.Errorf("the answer became %q", got)
	}
	r.stop()
}
