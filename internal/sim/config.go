package sim

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/router/kv"
)

// Personality is the engine that a simulated worker behaves like.
type Personality string

// The personalities.
const (
	VLLM   Personality = "vllm"   // blocks are cached as they fill, evicted one by one
	SGLang Personality = "sglang" // cached after prefill chunks and at finish, evicted by leaf
)

// EngineConfig describes one simulated engine: one DP rank with one KV cache. A zero
// field takes its default.
type EngineConfig struct {
	// BlockSize is the number of tokens in a KV block (SGLang: page); default 64.
	BlockSize int
	// CapacityTokens is the size of the KV cache, rounded down to whole blocks; default
	// 400,000. Make it small to see eviction.
	CapacityTokens int
	// MaxNumSeqs bounds the sequences that run at once; default 128.
	MaxNumSeqs int
	// ChunkTokens is the token budget of one step, decode tokens included; default 2,048.
	ChunkTokens int
	// Profile says how long a step takes; default LinearProfile{}.
	Profile Profile
	// SpeedUp divides every step's time; default 1.
	SpeedUp float64
	// Personality sets when blocks are cached and what eviction removes; default VLLM.
	Personality Personality
	// NoDuplicates makes vLLM share the block of a prefix that two sequences computed at
	// once, where the real engine keeps and announces both copies. SGLang always shares.
	NoDuplicates bool
	// EventPerBlock splits stored events into one per block, as SGLang releases before
	// page coalescing send them.
	EventPerBlock bool
	// Drafts drops the last block of each match in the prefix cache and computes it again,
	// as vLLM does with EAGLE and MTP. Nothing else of speculative decoding is simulated.
	Drafts bool
	// Seed takes part in the engine's block hashes, so that those of two vLLM processes
	// never meet; SGLang hashes depend on the content alone. Default 0.
	Seed uint64
}

func (c EngineConfig) withDefaults() EngineConfig {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.BlockSize, kv.DefaultBlockSize)
	def(&c.CapacityTokens, 400_000)
	def(&c.MaxNumSeqs, 128)
	def(&c.ChunkTokens, 2048)
	if c.Profile == nil {
		c.Profile = LinearProfile{}
	}
	if c.SpeedUp == 0 {
		c.SpeedUp = 1
	}
	if c.Personality == "" {
		c.Personality = VLLM
	}
	return c
}

// Validate names the first field that makes no sense.
func (c EngineConfig) Validate() error {
	c = c.withDefaults()
	switch {
	case c.BlockSize < 1:
		return fmt.Errorf("block size %d: must be at least 1 token", c.BlockSize)
	case c.CapacityTokens < c.BlockSize:
		return fmt.Errorf("capacity of %d tokens is below one block of %d", c.CapacityTokens, c.BlockSize)
	case c.MaxNumSeqs < 1:
		return fmt.Errorf("max_num_seqs %d: must be at least 1", c.MaxNumSeqs)
	case c.ChunkTokens < 1:
		return fmt.Errorf("chunk of %d tokens: must be at least 1", c.ChunkTokens)
	case !(c.SpeedUp > 0):
		return fmt.Errorf("speed-up %v: must be positive", c.SpeedUp)
	case c.Personality != VLLM && c.Personality != SGLang:
		return fmt.Errorf("personality %q is unknown: use vllm or sglang", c.Personality)
	}
	return nil
}

// Config describes a simulated worker. The zero value is a vLLM with one rank on a
// free loopback port that publishes no events.
type Config struct {
	// Listen is the HTTP address, host:port; default 127.0.0.1:0, a free port.
	Listen string
	// Listener, where set, is used instead of Listen, for tests in memory.
	Listener net.Listener
	// Like is the engine whose wires are spoken; default VLLM.
	Like Personality
	// AdvertiseModel is the served model's name; default "sim".
	AdvertiseModel string
	// Adapters are names of LoRA adapters of the model, chosen by a request's model.
	Adapters []string
	// MaxModelLen bounds prompt and output of one request in tokens; default the
	// engine's capacity.
	MaxModelLen int
	// APIKey, where set, is demanded as bearer token under /v1.
	APIKey string

	// Engine describes each DP rank; its Personality is set from Like.
	Engine EngineConfig
	// DPRanks is the number of data-parallel ranks, each with an engine and a publisher
	// of its own; default 1.
	DPRanks int

	// Events is the endpoint that KV events are published on, as tcp://host:port; rank r
	// uses port+r. Port 0 takes free consecutive ports. "" publishes none.
	Events string
	// EventsConnect dials Events instead of binding it, as vLLM does for an endpoint
	// without a wildcard.
	EventsConnect bool
	// Replay is the endpoint of the replay socket, like Events; "" has none.
	Replay string
	// Topic is the events' topic; default "".
	Topic string
	// Layout names the form of the events, as kvwire.ParseLayout knows it; default
	// vllm-0.26 or sglang-map. Replay answers have a topic frame from vllm-0.26 on.
	Layout string
	// Encode are further choices of the event codec; default integer hashes.
	Encode kvwire.EncodeOptions
	// BufferSteps is the number of batches kept for replay; default 10,000.
	BufferSteps int

	// Template is the chat template: "plain" (default; history is rendered as it was
	// generated) or "thinking" (replies begin with reasoning, which history drops).
	Template string
	// Model, where set, is a real tokenizer and chat template instead of the toy ones.
	// Template then says only whether replies begin with reasoning; reasoning and tool
	// calls are generated as Qwen's models write them.
	Model *prompt.Model
	// ReplyTokens is the typical length of a reply that nothing else ends, in tokens,
	// ± half; default 128.
	ReplyTokens int
	// ReasoningTokens is the typical length of reasoning with the thinking template, in
	// tokens, ± half; default 64.
	ReasoningTokens int
	// HideCached leaves cached_tokens out of usage, as engines do that were started
	// without --enable-prompt-tokens-details or --enable-cache-report.
	HideCached bool
	// NoTokenize takes away /tokenize and the render endpoints, so that routing has only
	// text; NoRender takes away the latter, as in vLLM before 2026.
	NoTokenize, NoRender bool
	// HealthDelay is how long SGLang's /health sleeps before it answers; default 1 s
	// divided by the engine's SpeedUp.
	HealthDelay time.Duration
	// Version is what /version or /server_info says; default a release that sends Layout.
	Version string
	// Seed decides the replies' texts and, with the engine's seed, the block hashes.
	// Default 0.
	Seed uint64

	// MaxQueue bounds the sequences of one rank that are queued or run; more are refused
	// with 503. Default 4,096.
	MaxQueue int
	// MaxBodyBytes bounds a request body; default 64 MiB.
	MaxBodyBytes int
	// Grace is how long Run lets requests finish after its context has ended; default 0.
	Grace time.Duration

	// Faults are in force from the start; POST /fault changes them.
	Faults Faults
}

func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Like == "" {
		c.Like = VLLM
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.AdvertiseModel == "" {
		c.AdvertiseModel = "sim"
	}
	if c.Layout == "" {
		c.Layout = kvwire.LayoutVLLM026.String()
		if c.Like == SGLang {
			c.Layout = kvwire.LayoutSGLangMap.String()
		}
	}
	if c.Template == "" {
		c.Template = "plain"
	}
	if c.Version == "" {
		c.Version = "0.26.0"
		if c.Like == SGLang {
			c.Version = "0.5.22"
		}
	}
	c.Engine.Personality = c.Like
	if strings.HasPrefix(c.Layout, "sglang") && c.Layout != kvwire.LayoutSGLangMap.String() {
		c.Engine.EventPerBlock = true
	}
	c.Engine = c.Engine.withDefaults()
	c.Engine.Seed += c.Seed
	def(&c.DPRanks, 1)
	def(&c.ReplyTokens, 128)
	def(&c.ReasoningTokens, 64)
	def(&c.MaxModelLen, c.Engine.CapacityTokens/c.Engine.BlockSize*c.Engine.BlockSize)
	def(&c.MaxQueue, 4096)
	def(&c.MaxBodyBytes, 64<<20)
	if c.HealthDelay == 0 {
		c.HealthDelay = time.Duration(float64(time.Second) / c.Engine.SpeedUp)
	}
	return c
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Like != VLLM && c.Like != SGLang {
		return fmt.Errorf("like %q is unknown: use vllm or sglang", c.Like)
	}
	if err := c.Engine.Validate(); err != nil {
		return err
	}
	if _, err := kvwire.ParseLayout(c.Layout); err != nil {
		return err
	}
	if !slices.Contains([]string{"plain", "thinking"}, c.Template) {
		return fmt.Errorf("template %q is unknown: use plain or thinking", c.Template)
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"dp ranks", c.DPRanks}, {"reply tokens", c.ReplyTokens}, {"reasoning tokens", c.ReasoningTokens},
		{"max model len", c.MaxModelLen}, {"max queue", c.MaxQueue}, {"max body bytes", c.MaxBodyBytes},
	} {
		if n.value < 1 {
			return fmt.Errorf("%s %d: must be at least 1", n.name, n.value)
		}
	}
	if c.Replay != "" && c.Events == "" {
		return fmt.Errorf("replay endpoint %s needs an events endpoint", c.Replay)
	}
	for _, endpoint := range []string{c.Events, c.Replay} {
		if endpoint == "" {
			continue
		}
		if _, err := rankEndpoint(endpoint, 0); err != nil {
			return err
		}
	}
	return c.Faults.validate()
}
