package prefill

import (
	"regexp"
	"strings"
	"testing"
)

// TestTrace_IsTheTurnsOwnChild: a warm-up stays in the trace of its turn, under a span id of
// its own and with a mark, whatever of W3C Trace Context the client sent.
func TestTrace_IsTheTurnsOwnChild(t *testing.T) {
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	const parent = "traceparent: 00-" + trace + "-" + span + "-01\r\n"
	own := regexp.MustCompile(`^traceparent: 00-` + trace + `-([0-9a-f]{16})-01\r\ntracestate: (.*)\r\n$`)
	f := func(want, client string) {
		t.Helper()
		got := string(appendTrace(nil, []byte(client)))
		if want == "" {
			if got != "" {
				t.Errorf("%q becomes %q", client, got)
			}
			return
		}
		m := own.FindStringSubmatch(got)
		if m == nil || m[1] == span || m[1] == "0000000000000000" || m[2] != want {
			t.Errorf("%q becomes %q, want the state %q", client, got, want)
		}
	}
	f("warmroute=prefill", parent)
	f("warmroute=prefill,rojo=00f067aa0ba902b7,congo=t61", "X-A: 1\r\n"+parent+"Tracestate: rojo=00f067aa0ba902b7, congo=t61\r\n")
	f("warmroute=prefill,a=1,b=2", "tracestate: a=1\r\n"+parent+"tracestate: warmroute=x,,b=2\r\n")
	f("warmroute=prefill", "traceparent: 01-"+trace+"-"+span+"-01-later\r\n")
	f("", "tracestate: a=1\r\n")
	f("", parent+parent)
	f("", "traceparent: 00-"+trace+"-"+span+"-01-more\r\n")
	f("", "traceparent: ff-"+trace+"-"+span+"-01\r\n")
	f("", "traceparent: 00-"+strings.ToUpper(trace)+"-"+span+"-01\r\n")
	f("", "traceparent: 00-"+strings.Repeat("0", 32)+"-"+span+"-01\r\n")
	f("", "traceparent: 00-"+trace+"-"+strings.Repeat("0", 16)+"-01\r\n")
	f("", "traceparent: 00-"+trace+"-"+span+"\r\n")
	many := parent + "tracestate: " + strings.Repeat("a=1,", 40) + "\r\n"
	if got := string(warmHeader(nil, []byte(many), "warm-1", "")); strings.Count(got, "a=1") != maxTraceMembers-1 || strings.Count(got, "traceparent:") != 1 || strings.Contains(got, span) {
		t.Errorf("the warm-up's header is %q", got)
	}
}
