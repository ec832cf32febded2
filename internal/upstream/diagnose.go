package upstream

import "fmt"

// cacheReportFlag is the engine flag without which usage has no cached_tokens.
var cacheReportFlag = map[string]string{
	EngineVLLM:   "usage has no cached_tokens, so reuse cannot be measured: start vLLM with --enable-prompt-tokens-details",
	EngineSGLang: "usage has no cached_tokens, so reuse cannot be measured: start SGLang with --enable-cache-report",
}

// What makes an engine reuse its cache at all, and tell of it in whole blocks.
const (
	vllmCachingFlag = "prefix caching is off, so nothing is reused: start vLLM with --enable-prefix-caching"
	sglangRadixFlag = "the radix cache is off, so nothing is reused: start SGLang without --disable-radix-cache"
	sglangPageFlag  = "page size 1 makes one KV event a token: start SGLang with --page-size 16"
)

// noReplayFlag is what makes coverage complete after a lost message or a restart.
const noReplayFlag = `no replay socket: after a lost message or a restart of this proxy coverage stays partial; add "replay_endpoint":"tcp://*:5657" to the engine's --kv-events-config, and events: tcp://HOST:5557 and replay: tcp://HOST:5657 here`

// eventsFlag is what makes an engine publish KV events, and what to configure here.
var eventsFlag = map[string]string{
	EngineVLLM:     `start vLLM with --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}' and set events: tcp://HOST:5557 and replay: tcp://HOST:5657 for this worker, or run warmroute relay beside it`,
	EngineSGLang:   `start SGLang with --page-size 16 --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}' and set events: tcp://HOST:5557 and replay: tcp://HOST:5657 for this worker, or run warmroute relay beside it`,
	EngineLlamaCPP: "llama.cpp publishes no KV events: prefixes are learned from the requests that were routed",
	EngineOpenAI:   "this engine is not known to publish KV events: prefixes are learned from the requests that were routed",
}

// eventsReason says why a worker has no event feed and what would give it one.
func eventsReason(engine string) string {
	flag, ok := eventsFlag[engine]
	if !ok {
		flag = eventsFlag[EngineOpenAI]
	}
	if engine == EngineVLLM || engine == EngineSGLang {
		return "KV events off? " + flag
	}
	return flag
}

// silentReason says why a configured feed may be silent.
func silentReason(engine, endpoint string) string {
	return fmt.Sprintf("no KV event has come from %s yet; if that lasts under load: %s", endpoint, eventsFlag[engine])
}

// diagnose adds what the configuration itself shows.
func (f *facts) diagnose(cfg *WorkerConfig) {
	reads := cfg.Events != "" || f.advert != nil && f.advert.Publisher == "zmq"
	if reads && cfg.Replay == "" {
		f.flags = append(f.flags, noReplayFlag)
	}
	if f.ranks > 1 && cfg.Ranks > 1 && f.ranks != cfg.Ranks {
		f.flags = append(f.flags, fmt.Sprintf("ranks is %d, the engine says %d", cfg.Ranks, f.ranks))
	}
}

// usageProof is how many answers must lack cached_tokens, where a hit was certain to be
// reported, before that counts as a missing flag.
const usageProof = 5

// ObserveUsage tells what an answer's usage said: whether cached_tokens was there, for a
// request whose predicted overlap was overlapTokens. SGLang leaves out a zero, so only
// answers that must have had a hit count.
func (w *Worker) ObserveUsage(cachedKnown bool, overlapTokens int) {
	if cachedKnown {
		w.usageMissing.Store(0)
		return
	}
	if overlapTokens > 0 && w.usageMissing.Add(1) == usageProof {
		if flag := cacheReportFlag[w.engine()]; flag != "" {
			w.f.cfg.Logger.Warn("worker reports no cached tokens", "worker", w.id, "fix", flag)
		}
	}
}
