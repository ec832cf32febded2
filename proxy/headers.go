package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/router"
)

// The headers of our own.
const (
	headerRequestID = "X-Request-Id"
	headerWorker    = "X-Warmroute-Worker"
	headerExplain   = "X-Warmroute-Explain"
	headerRank      = "X-Data-Parallel-Rank"
	headerSalt      = "X-Warmroute-Cache-Salt"
	ownPrefix       = "X-Warmroute-"
)

// hopByHop are the fields that end at this proxy, in both directions, besides those that
// Connection names.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, headerRequestID: true,
	"Date": true, // the server writes its own
}

// notUpstream are the fields of a request that the proxy writes itself or keeps.
var notUpstream = map[string]bool{
	"Host": true, "Expect": true, "Content-Encoding": true, "Accept-Encoding": true,
	"Authorization": true, headerRank: true,
}

// appendRequestHeaders appends what the worker gets of the client's headers. A compressed
// answer could not be read for usage, so none is asked for. keyed says that the client's key
// is one of this proxy's, which no worker may see.
func appendRequestHeaders(dst []byte, h *fasthttp.RequestHeader, id string, rank int, keyed bool) []byte {
	named := connectionNames(h.PeekAll("Connection"))
	for k, v := range h.All() {
		if hopByHop[string(k)] || notUpstream[string(k)] || named[string(k)] || bytes.HasPrefix(k, []byte(ownPrefix)) {
			continue
		}
		if !isToken(k) { // fasthttp does not spell such a name as the tables above do
			continue
		}
		if keyed && (string(k) == headerAPIKey || string(k) == headerXAPIKey) {
			continue
		}
		dst = appendHeader(dst, string(k), v)
	}
	dst = append(dst, "Accept-Encoding: identity\r\n"...)
	dst = appendHeader(dst, headerRequestID, []byte(id))
	if rank >= 0 {
		dst = appendHeader(dst, headerRank, strconv.AppendInt(nil, int64(rank), 10))
	}
	return dst
}

// isToken tells whether a field's name is one by RFC 9110, section 5.6.2.
func isToken(name []byte) bool {
	for _, c := range name {
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			continue
		}
		if bytes.IndexByte([]byte("!#$%&'*+.^`|~"), c) < 0 {
			return false
		}
	}
	return len(name) > 0
}

func appendHeader(dst []byte, name string, value []byte) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// copyResponseHeaders gives the client the worker's headers.
func copyResponseHeaders(dst, src *fasthttp.ResponseHeader) {
	named := connectionNames(src.PeekAll("Connection"))
	for k, v := range src.All() {
		if hopByHop[string(k)] || named[string(k)] || bytes.HasPrefix(k, []byte(ownPrefix)) {
			continue
		}
		dst.AddBytesKV(k, v)
	}
}

// connectionNames returns the fields that Connection lists as hop by hop.
func connectionNames(values [][]byte) map[string]bool {
	var named map[string]bool
	for _, v := range values {
		for name := range strings.SplitSeq(string(v), ",") {
			name = canonical(strings.TrimSpace(name))
			// A client must not take the length or type of its body away.
			if name == "" || name == "Content-Type" {
				continue
			}
			if named == nil {
				named = map[string]bool{}
			}
			named[name] = true
		}
	}
	return named
}

// canonical spells a field name as fasthttp does.
func canonical(name string) string {
	b := []byte(strings.ToLower(name))
	upper := true
	for i, c := range b {
		if upper && c >= 'a' && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
		upper = c == '-'
	}
	return string(b)
}

// requestID returns the client's request id if it is fit for headers and logs, else a new
// one.
func requestID(h *fasthttp.RequestHeader) string {
	id := h.Peek(headerRequestID)
	if len(id) == 0 || len(id) > 128 {
		return newRequestID()
	}
	for _, c := range id {
		if c <= ' ' || c >= 0x7f {
			return newRequestID()
		}
	}
	return string(id)
}

func newRequestID() string {
	var b [16]byte
	for i := range b {
		if i%8 == 0 {
			v := rand.Uint64()
			for j := range 8 {
				b[i+j] = byte(v >> (8 * j))
			}
		}
	}
	return hex.EncodeToString(b[:])
}

// tenant returns the name under which a client's habits are learned: a hash of its bearer
// token, "" without one.
func tenant(h *fasthttp.RequestHeader) string {
	auth := h.Peek("Authorization")
	if len(auth) == 0 {
		return ""
	}
	sum := sha256.Sum256(auth)
	return hex.EncodeToString(sum[:8])
}

// pinnedRank returns the data-parallel rank that a client asks for, -1 for none.
func pinnedRank(h *fasthttp.RequestHeader) (int, *fault) {
	given := h.Peek(headerRank)
	if given == nil {
		return -1, nil
	}
	n, err := strconv.ParseUint(string(given), 10, 31)
	if err != nil {
		return -1, faultRank(string(given))
	}
	return int(n), nil
}

// explain adds why the request went where it went.
func explain(h *fasthttp.ResponseHeader, d *router.Decision, tokenize, route, upstream time.Duration) {
	h.Set("X-Warmroute-Decision", d.ID)
	h.Set("X-Warmroute-Reason", d.Reason)
	h.Set("X-Warmroute-Prompt-Source", d.PromptSource)
	h.Set("X-Warmroute-Overlap-Tokens", strconv.Itoa(d.OverlapTokens))
	h.Set("X-Warmroute-Predicted-TTFT", strconv.FormatFloat(d.PredictedTTFT, 'f', 4, 64))
	ms := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 3, 64) }
	queue := ""
	if d.Waited > 0 {
		waited := time.Duration(d.Waited * float64(time.Second))
		queue = ", queue;dur=" + ms(waited)
		route -= min(waited, route)
	}
	h.Set("Server-Timing", "tokenize;dur="+ms(tokenize)+", route;dur="+ms(route)+queue+", upstream;dur="+ms(upstream))
}

// hasContentLength tells whether raw headers hold a Content-Length, which fasthttp forgets
// where the body is chunked.
func hasContentLength(raw []byte) bool {
	for line := range bytes.Lines(raw) {
		name, _, ok := bytes.Cut(line, []byte(":"))
		if ok && bytes.EqualFold(bytes.TrimSpace(name), []byte("Content-Length")) {
			return true
		}
	}
	return false
}

// isFolded tells whether a raw header field goes on in a line that begins with a blank
// (obs-fold of RFC 9112, section 5.2), which fasthttp joins.
func isFolded(raw []byte) bool {
	return bytes.Contains(raw, []byte("\n ")) || bytes.Contains(raw, []byte("\n\t"))
}

// isEventStream tells whether a content type, whatever its parameters, is that of SSE.
func isEventStream(contentType []byte) bool {
	t, _, _ := bytes.Cut(contentType, []byte(";"))
	return bytes.EqualFold(bytes.TrimSpace(t), []byte("text/event-stream"))
}
