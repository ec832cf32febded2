package upstream

import (
	"slices"
	"strings"

	"github.com/warmroute/warmroute/router/events"
)

// WorkerStatus is one worker as /debug/workers shows it.
type WorkerStatus struct {
	ID        string `json:"id"`
	URL       string `json:"url"`
	Announced bool   `json:"announced,omitempty"` // known by a NATS announcement alone
	Healthy   bool   `json:"healthy"`
	Reason    string `json:"reason,omitempty"` // why it is not healthy

	Breaker       string `json:"breaker"` // closed, open or trial
	BreakerReason string `json:"breaker_reason,omitempty"`

	Engine         string   `json:"engine,omitempty"`
	Version        string   `json:"version,omitempty"`
	Models         []string `json:"models,omitempty"`
	Ranks          int      `json:"ranks"`
	BlockSize      int      `json:"block_size,omitempty"` // as probed; the feed's is what counts
	CapacityTokens int      `json:"capacity_tokens,omitempty"`
	MaxNumSeqs     int      `json:"max_num_seqs,omitempty"`

	ReportedLoad *ReportedLoad `json:"reported_load,omitempty"` // by vLLM at the last probe

	Tokens      string              `json:"tokens"` // where token ids come from, or why they do not
	Feeds       []events.FeedStatus `json:"feeds"`  // one a rank
	Fixes       []string            `json:"fixes,omitempty"`
	Connections int                 `json:"connections"`
}

// Status returns every worker by name.
func (f *Fleet) Status() []WorkerStatus {
	var list []WorkerStatus
	for _, w := range f.workers() {
		list = append(list, w.status())
	}
	return list
}

func (w *Worker) status() WorkerStatus {
	facts := w.known()
	w.mu.Lock()
	s := WorkerStatus{
		ID: w.id, URL: w.base.url, Announced: w.announced, Healthy: w.mu.healthy, Reason: w.mu.reason,
		Engine: w.engineLocked(), Ranks: w.ranks(facts),
	}
	w.mu.Unlock()
	s.Breaker, s.BreakerReason = w.breaker.standing()
	if facts != nil {
		info := facts.info(w.cfg)
		s.ReportedLoad = facts.load
		s.Version, s.BlockSize, s.CapacityTokens, s.MaxNumSeqs = facts.version, info.BlockSize, info.CapacityTokens, info.MaxNumSeqs
		for _, m := range facts.models {
			s.Models = append(s.Models, m.ID)
		}
		s.Fixes = slices.Clone(facts.flags)
	}
	if flag := cacheReportFlag[s.Engine]; flag != "" && w.usageMissing.Load() >= usageProof && !slices.Contains(s.Fixes, flag) {
		s.Fixes = append(s.Fixes, flag)
	}
	for rank := range s.Ranks {
		s.Feeds = append(s.Feeds, w.feed(rank))
	}
	s.Tokens = w.describeTokens(s.Models)
	s.Connections, _ = w.pool.stats()
	return s
}

// describeTokens says where the token ids of the worker's prompts come from.
func (w *Worker) describeTokens(models []string) string {
	engine := w.tok.describe()
	for _, name := range models {
		switch local := w.f.cfg.Local.Describe(name); {
		case strings.HasPrefix(local, "not local"):
			return engine + "; " + local
		case local != "":
			return local
		}
	}
	return engine
}

// Unjoined returns the announced workers that nobody configured or allowed, by name.
func (f *Fleet) Unjoined() []Unjoined {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Unjoined, 0, len(f.mu.unjoined))
	for _, u := range f.mu.unjoined {
		list = append(list, u)
	}
	slices.SortFunc(list, func(a, b Unjoined) int { return strings.Compare(a.Worker, b.Worker) })
	return list
}
