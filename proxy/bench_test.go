package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkFront measures one request through the whole front, over real sockets and with
// worker and client in the same process. Prompts are routed by text.
func BenchmarkFront(b *testing.B) {
	script := func(c *call) bool {
		if !strings.HasSuffix(string(c.body), `"stream":true}`) {
			c.json(200, "", `{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`)
			return true
		}
		var s strings.Builder
		s.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 20 {
			fmt.Fprintf(&s, "%x\r\n%s\r\n", len(delta("tok")), delta("tok"))
		}
		fmt.Fprintf(&s, "%x\r\n%s\r\n0\r\n\r\n", len(finish+doneEnd), finish+doneEnd)
		c.write(s.String())
		return true
	}
	for _, size := range []int{1 << 10, 300 << 10} {
		for _, stream := range []bool{false, true} {
			b.Run(fmt.Sprintf("body=%dKB/stream=%v", size>>10, stream), func(b *testing.B) {
				r := newRig(b, setup{}, startWorker(b, script))
				body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}],"stream":` + fmt.Sprint(stream) + "}"
				raw := request(pathChat, "", body)
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					c := r.dial()
					defer c.Close()
					br := bufio.NewReader(c)
					for pb.Next() {
						_, _ = io.WriteString(c, raw)
						resp, err := http.ReadResponse(br, nil)
						if err != nil {
							b.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, resp.Body)
					}
				})
				b.StopTimer()
				r.stop()
			})
		}
	}
}
