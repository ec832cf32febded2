package prefill

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// Mode says which turns are candidates for a warm-up without a word from the client.
type Mode string

// The modes. A request's own hint wins over each.
const (
	ModeOff  Mode = "off"
	ModeOn   Mode = "on"
	ModeAuto Mode = "auto" // on workers that are known to hold a cache, so that nobody is billed for nothing
)

// Trigger is the event that a warm-up answers.
type Trigger string

// The triggers.
const (
	TriggerTurn  Trigger = "turn"  // the assistant has answered
	TriggerTools Trigger = "tools" // the assistant calls tools: the next turn is near and nearly certain
)

// The triggers that answer no turn. They send prefixes that conversations share or have.
const (
	TriggerJoin      Trigger = "join"      // a worker has come with an empty cache
	TriggerReplicate Trigger = "replicate" // a head is worth a copy on an idle worker
	TriggerRewarm    Trigger = "rewarm"    // the blocks of a conversation that waits are gone
)

const (
	defaultHoldout   = 0.05
	defaultHeldBytes = 256 << 20

	maxConversations = 100_000
	maxJobs          = 256              // warm-ups that wait or are under way
	maxTurnBytes     = 16 << 20         // body and reply of one turn
	maxPerWorker     = 2                // warm-ups in flight on one rank
	jobLife          = 60 * time.Second // from the end of a turn to the end of its warm-up
	openLife         = 15 * time.Minute // of a conversation that waits for its next turn
	settleDelay      = 50 * time.Millisecond
	failurePause     = 5 * time.Second // no warm-up goes to a worker that failed one, for so long
)

// Config says what is warmed and what is needed for it. Zero values mean the defaults.
type Config struct {
	// Default is the mode of requests that neither their model nor their key has one
	// for; off by default. Models and Keys are by served name and by name of the API
	// key; a key's mode wins.
	Default Mode
	Models  map[string]Mode
	Keys    map[string]Mode

	// Holdout is the share of turns that would be warmed and are not, at random, so that
	// what warming saves is known; default 0.05. Negative: none, and then nothing is
	// measured. Raise it to know sooner.
	Holdout float64

	// HeldBytes caps the bodies and replies kept for warming; default 256 MiB. Turns
	// beyond it are not warmed.
	HeldBytes int64

	// Join warms the hottest shared heads on a worker with an empty cache before it takes
	// requests, at most 10 s, where others can take them (Prefiller.Join).
	Join bool
	// Replicate copies a shared head to an idle worker when what requests lose for want
	// of it there pays for that (router.Config.Copies must be set, too).
	Replicate bool
	// Rewarm computes the prefix of a conversation that waits for its next turn again
	// when its blocks are gone, its user is likely to come back, and what goes for it has
	// been idle for long. Its tokens are kept for as long as it waits.
	Rewarm bool

	Router *router.Router // required
	Sender Sender         // required

	// Identify returns the identity of a request that will never come, as that of a real
	// one is made; required. It waits at most as long as a request would.
	Identify func(ctx context.Context, req *openai.Request, body []byte, ns kv.Namespace) *kv.Prompt

	Peers Peers // other proxies of the same workers

	Seed       uint64                // of the holdout; 0: random
	Registerer prometheus.Registerer // nil: metrics are not registered
}

// Validate names the first setting that makes no sense, or a missing dependency.
func (c *Config) Validate() error {
	check := func(where string, m Mode) error {
		switch m {
		case "", ModeOff, ModeOn, ModeAuto:
			return nil
		}
		return fmt.Errorf("speculative prefill %q%s is not one of off, on, auto", m, where)
	}
	if err := check("", c.Default); err != nil {
		return err
	}
	for name, m := range c.Models {
		if err := check(fmt.Sprintf(" of model %q", name), m); err != nil {
			return err
		}
	}
	for name, m := range c.Keys {
		if err := check(fmt.Sprintf(" of key %q", name), m); err != nil {
			return err
		}
	}
	switch {
	case c.Holdout > 1:
		return fmt.Errorf("speculation_holdout %v is a share: at most 1", c.Holdout)
	case c.HeldBytes < 0:
		return fmt.Errorf("bytes held for warming %d: must not be negative", c.HeldBytes)
	case c.Router == nil || c.Sender == nil || c.Identify == nil:
		return fmt.Errorf("prefill needs a router, a sender and identities of prompts")
	}
	return nil
}

// mode returns the mode of a request without a hint.
func (c *Config) mode(model, key string) Mode {
	if m, ok := c.Keys[key]; ok && m != "" {
		return m
	}
	if m, ok := c.Models[model]; ok && m != "" {
		return m
	}
	return c.Default
}
