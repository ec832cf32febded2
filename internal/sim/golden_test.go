package sim

import (
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/script"
)

var created = regexp.MustCompile(`"created":\d+`)

// TestGolden_HTTP pins what each personality answers, byte by byte. A case is
//
//	POST /path key=value...
//	body
//
// with headers as keys; the file's name starts with the personality's.
func TestGolden_HTTP(t *testing.T) {
	script.RunDir(t, "testdata/http", func(t *testing.T) func(*script.Cmd) string {
		like, rest, _ := strings.Cut(path.Base(t.Name()), "-")
		cfg := Config{
			Like: Personality(like), Adapters: []string{"ad"}, MaxModelLen: 1600, ReplyTokens: 5, ReasoningTokens: 4,
			// Each token is an event of its own, however late the reader is.
			Faults: Faults{DieAfter: 1 << 30},
		}
		if strings.Contains(rest, "thinking") {
			cfg.Template = "thinking"
		}
		s := start(t, cfg)
		return func(c *script.Cmd) string {
			req, err := http.NewRequest(c.Name, s.URL()+c.Args[0], strings.NewReader(c.Input))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			for k, v := range c.Vals {
				req.Header.Set(k, v)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			out := created.ReplaceAllString(string(b), `"created":0`)
			return fmt.Sprintf("%d %s\n%s", resp.StatusCode, resp.Header.Get("Content-Type"), strings.TrimRight(out, "\n"))
		}
	})
}
