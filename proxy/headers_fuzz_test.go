package proxy

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// FuzzHeaders: whatever a client sends as its header, a worker gets whole lines, none that
// ends at this proxy or is written by it, and of a key of ours nothing.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{
		"", bearer("a"), "Connection: x-drop, Host\r\nX-Drop: 1\r\n", "api-key: secret\r\nAPI-KEY: secret\r\n", "X-A: 1\r\n b\r\n", "X-A:\r\n",
		"Transfer-Encoding: chunked\r\nTE: trailers\r\n", "X-Warmroute-Cache-Salt: s\r\nx-warmroute-explain: 1\r\n", "traceparent: 00-1-2-01\r\n",
		"Authorization:Bearer\tx\r\nAuthorization: Bearer y\r\n", "X-Data-Parallel-Rank: -1\r\nX-Request-Id: a b\r\n", "X-\xff: \x01\x7f\r\n", "A: b\rC: d\r\n",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	ring, err := newKeyring([]Key{tenantKey("a")}, nil)
	if err != nil {
		f.Fatal(err)
	}
	s := new(Server)
	s.keys.Store(&ring)
	f.Fuzz(func(t *testing.T, fields string, keyed bool) {
		var h fasthttp.RequestHeader
		if h.Read(bufio.NewReaderSize(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\n"+fields+"\r\n"), 64<<10)) != nil {
			return
		}
		if c, ok := s.authenticate(&h); ok != (c != nil) || ok && !bytes.Contains([]byte(fields), []byte(keyOf("a"))) {
			t.Errorf("%q came in as %v", fields, c)
		}
		id := requestID(&h)
		if id == "" || len(id) > 128 || !printable(id) {
			t.Errorf("request id %q", id)
		}
		rank, fault := pinnedRank(&h)
		if rank < -1 || (fault == nil) != (rank >= 0 || h.Peek(headerRank) == nil) {
			t.Errorf("rank %d, %v", rank, fault)
		}
		out := appendRequestHeaders(nil, &h, id, rank, keyed)
		if len(out) < 2 || string(out[len(out)-2:]) != "\r\n" {
			t.Fatalf("%q does not end a line", out)
		}
		count := map[string]int{}
		for line := range strings.SplitSeq(string(out[:len(out)-2]), "\r\n") {
			name, value, ok := strings.Cut(line, ": ")
			if !ok || name == "" || strings.ContainsAny(line, "\r\n\x00") {
				t.Fatalf("line %q of %q", line, out)
			}
			name = canonical(name)
			count[name]++
			mine := name == headerRequestID || name == headerRank || name == "Accept-Encoding"
			if !mine && (hopByHop[name] || notUpstream[name] || strings.HasPrefix(name, ownPrefix)) {
				t.Errorf("%q is passed on", line)
			}
			if keyed && (name == headerAPIKey || name == headerXAPIKey) {
				t.Errorf("%q of %q may hold a key", name, value)
			}
		}
		if count[headerRequestID] != 1 || count["Accept-Encoding"] != 1 || count[headerRank] > 1 {
			t.Errorf("fields of our own: %v", count)
		}
	})
}
