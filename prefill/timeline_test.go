package prefill

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/script"
	"github.com/warmroute/warmroute/router"
)

// TestPrefill_Timelines plays the stories of testdata/timeline in virtual time.
func TestPrefill_Timelines(t *testing.T) {
	files, err := filepath.Glob("testdata/timeline/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories (%v)", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &story{t: t}
				script.Run(t, f, s.run)
				if s.rig != nil {
					s.rig.close()
				}
			})
		})
	}
}

// story is one script in progress.
type story struct {
	t     *testing.T
	rig   *rig
	chats map[string]*chat
}

func (s *story) run(c *script.Cmd) string {
	switch c.Name {
	case "rig":
		if s.rig != nil {
			s.rig.close()
		}
		cfg := rigConfig{
			Workers: c.Int("workers", 1), Feed: c.String("feed", router.FeedComplete), Name: c.String("engine", "vllm"),
			Thinking: c.String("template", "thinking") == "thinking", NoTokens: c.String("tokens", "") == "none",
		}
		cfg.Engine.BlockSize = c.Int("block", 16)
		cfg.Prefill.Default = Mode(c.String("default", "on"))
		cfg.Prefill.Holdout = c.Float("holdout", -1)
		s.rig = newRig(s.t, cfg)
		s.chats = map[string]*chat{}
		return ""
	case "turn":
		return s.turn(c)
	case "wait":
		d, err := time.ParseDuration(c.Args[0])
		if err != nil {
			panic(c.Pos + ": " + err.Error())
		}
		time.Sleep(d)
		synctest.Wait()
		return s.rig.flush()
	case "worker":
		return s.worker(c)
	case "outcomes":
		return s.rig.outcomes()
	case "debug":
		d := s.rig.prefill.Debug()
		out := fmt.Sprintf("conversations=%d queue=%d held=%d paused=%d", d.Conversations, d.Queue, d.HeldBytes, len(d.Pauses))
		for _, v := range d.Scopes {
			out += fmt.Sprintf("\n%s: p=%.2f", v.Trigger, v.Probability)
		}
		return out
	}
	panic(c.Pos + ": no command " + c.Name)
}

// worker makes every worker answer warm-ups in another way.
func (s *story) worker(c *script.Cmd) string {
	g := s.rig
	g.mu.Lock()
	defer g.mu.Unlock()
	switch c.Args[0] {
	case "computes":
		g.answer = nil
	case "hangs":
		g.answer = func(ctx context.Context) (Answer, error) {
			<-ctx.Done()
			return Answer{}, ctx.Err()
		}
	case "refuses":
		g.answer = func(context.Context) (Answer, error) { return Answer{}, errRefused }
	default:
		a := Answer{Status: c.Int("status", 200), RetryAfter: time.Duration(c.Float("retry_after", 0) * 1e9)}
		g.answer = func(context.Context) (Answer, error) { return a, nil }
	}
	return ""
}

// someText returns n bytes that differ by name from the first on.
func someText(name string, n int) string {
	b := make([]byte, 0, n+len(name)+8)
	for i := 0; len(b) < n; i++ {
		b = append(strconv.AppendInt(append(b, name...), int64(i), 10), ' ')
	}
	return string(b[:n])
}

func (s *story) turn(c *script.Cmd) string {
	name := c.Args[0]
	ch := s.chats[name]
	if ch == nil {
		ch = &chat{rig: s.rig, name: name}
		s.chats[name] = ch
	}
	ch.hint = c.String("hint", "")
	ch.key = c.String("key", "")
	n := len(ch.messages)
	v := say{
		User: someText(fmt.Sprint(name, "u", n), c.Int("user", 100)), Finish: c.String("finish", ""), N: c.Int("n", 1),
		Output: c.Int("output", 0),
	}
	if r := c.Int("reasoning", 0); r > 0 {
		v.Reasoning = someText(fmt.Sprint(name, "t", n), r)
	}
	if r := c.Int("reply", 0); r > 0 {
		v.Reply = someText(fmt.Sprint(name, "r", n), r)
	}
	if r := c.Int("call", 0); r > 0 {
		v.Call = `{"path":"` + someText(fmt.Sprint(name, "c", n), r) + `"}`
	}
	for _, w := range c.Args[1:] {
		switch w {
		case "failed":
			v.Failed = true
		case "nousage":
			v.Usage = true
		case "again": // the client sends the same request once more
			ch.messages = ch.messages[:n-2]
			v.User = someText(fmt.Sprint(name, "u", n-2), c.Int("user", 100))
		}
	}
	ch.turn(v)
	synctest.Wait()
	return s.rig.flush()
}
