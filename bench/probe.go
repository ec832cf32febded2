package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	goopenai "github.com/sashabaranov/go-openai"

	"github.com/warmroute/warmroute/bench/report"
)

const (
	probeTokens  = 100 // of a probe's message
	probeOutput  = 8   // of its answer: the first tokens of a reasoning model may be silent marks
	maxProbeRate = 1000
	maxProbes    = 256 // at a time; a due one that finds no room is left out
)

// probes are short requests of strangers beside a block, at constant times whatever the
// endpoint does (open loop). No arm hints for them.
type probes struct {
	client *client
	rate   float64
	seed   uint64
}

func newProbes(cfg *ABConfig) (*probes, error) {
	if cfg.ProbeRate == 0 {
		return &probes{}, nil
	}
	c := cfg.Config
	c.Hint, c.MaxCompletionTokens, c.ToolSteps, c.IgnoreEOS = HintOff, probeOutput, 0, false
	client, err := newClient(&c)
	if err != nil {
		return nil, err
	}
	return &probes{client: client, rate: cfg.ProbeRate, seed: cfg.Seed}, nil
}

func (p *probes) close() {
	if p.client != nil {
		p.client.close()
	}
}

// start sends probes until the returned function is called, which waits for the last ones.
func (p *probes) start(ctx context.Context, model, salt string) (stop func() []report.Record) {
	if p.client == nil {
		return func() []report.Record { return nil }
	}
	until, end := context.WithCancel(ctx)
	var mu sync.Mutex
	var records []report.Record
	var wg sync.WaitGroup
	c, start, under := p.client, p.client.now(), make(chan struct{}, maxProbes)
	wg.Go(func() {
		r := rand.New(rand.NewPCG(p.seed, 0x70726f6265))
		for i := 0; ; i++ {
			due := time.Duration((float64(i) + 0.5) / p.rate * float64(time.Second))
			text := prose(r, probeTokens)
			if !c.wait(until, start.Add(due)) {
				return
			}
			select {
			case under <- struct{}{}:
			default:
				continue
			}
			wg.Go(func() {
				defer func() { <-under }()
				q := report.Record{User: i, Planned: report.Micros(due)}
				c.turn(ctx, start, model, fmt.Sprintf("%s-probe-%d", salt, i), []goopenai.ChatCompletionMessage{
					{Role: goopenai.ChatMessageRoleUser, Content: salted(fmt.Sprintf("%s %d", salt, i), text)},
				}, &q)
				mu.Lock()
				defer mu.Unlock()
				records = append(records, q)
			})
		}
	})
	return func() []report.Record {
		end()
		wg.Wait()
		return records
	}
}
