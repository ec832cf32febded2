package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	goopenai "github.com/sashabaranov/go-openai"

	"github.com/warmroute/warmroute/bench/report"
)

// maxGaps is how many pauses between chunks a run keeps, 160 MB; later ones are counted.
const maxGaps = 20_000_000

// Run plays the plan once and returns what was measured. When ctx ends early it returns
// the turns measured until then, with Interrupted set, and no error. An error means that
// nothing could be measured at all.
func Run(ctx context.Context, cfg Config) (*report.Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := newClient(&cfg)
	if err != nil {
		return nil, err
	}
	defer c.close()
	model, err := c.model(ctx)
	if err != nil {
		return nil, err
	}
	if cfg.Salt == "" {
		cfg.Salt = freshSalt()
	}
	return c.run(ctx, newPlan(&cfg), model, cfg.Salt), nil
}

// run plays p with the given salt.
func (c *client) run(ctx context.Context, p *plan, model, salt string) *report.Run {
	out := &report.Run{
		Version: c.cfg.Version, URL: c.cfg.base(), Model: model, Salt: salt,
		Speculative: c.cfg.Hint == HintOn, Started: time.Now().UTC(), Workload: c.cfg.workload(p),
	}
	var mu struct {
		sync.Mutex
		records               []report.Record
		cancelled, gaps, left int
	}
	start := c.now()
	done := func(q report.Record) {
		mu.Lock()
		defer mu.Unlock()
		if q.Failure == failCancelled {
			mu.cancelled++
			return
		}
		if mu.gaps += len(q.Gaps); mu.gaps > maxGaps {
			mu.left += len(q.Gaps)
			q.Gaps = nil
		}
		mu.records = append(mu.records, q)
		if c.cfg.OnTurn != nil {
			c.cfg.OnTurn(&q)
		}
	}
	var users sync.WaitGroup
	for user := range c.cfg.Users {
		users.Go(func() { c.converse(ctx, start, model, salt, user, p.user(user), done) })
	}
	users.Wait()
	out.Duration = report.Micros(c.now().Sub(start))
	out.Records, out.Cancelled, out.GapsLeftOut = mu.records, mu.cancelled, mu.left
	out.Interrupted = ctx.Err() != nil
	out.Summarise()
	return out
}

// converse plays one conversation: a turn is due when the one before has ended and its
// think time has passed. A turn that fails ends it.
func (c *client) converse(ctx context.Context, start time.Time, model, salt string, user int, p userPlan, done func(report.Record)) {
	session := fmt.Sprintf("%s-%d", salt, user)
	messages := []goopenai.ChatCompletionMessage{{Role: goopenai.ChatMessageRoleSystem, Content: salted(salt, p.system)}}
	due := p.start
	for i := range p.turns {
		t := &p.turns[i]
		due += t.think
		if !c.wait(ctx, start.Add(due)) {
			return
		}
		messages = append(messages, goopenai.ChatCompletionMessage{Role: goopenai.ChatMessageRoleUser, Content: t.text})
		for step := 0; ; step++ {
			q := report.Record{User: user, Turn: i, Step: step, Planned: report.Micros(due), Think: report.Micros(t.think)}
			a := c.turn(ctx, start, model, session, messages, &q)
			done(q)
			if !q.OK {
				return
			}
			said := goopenai.ChatCompletionMessage{Role: goopenai.ChatMessageRoleAssistant, Content: a.content, ToolCalls: a.calls}
			if c.cfg.EchoReasoning {
				said.ReasoningContent = a.reasoning
			}
			messages = append(messages, said)
			due = time.Duration(q.End)
			if len(a.calls) == 0 || step >= len(t.tools) {
				break
			}
			for _, call := range a.calls {
				messages = append(messages, goopenai.ChatCompletionMessage{Role: goopenai.ChatMessageRoleTool, Content: t.tools[step], ToolCallID: call.ID})
			}
			due += c.cfg.ToolDelay
			if !c.wait(ctx, start.Add(due)) {
				return
			}
		}
	}
}

// wait sleeps until the instant and tells whether ctx is still alive.
func (c *client) wait(ctx context.Context, until time.Time) bool {
	d := until.Sub(c.now())
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
