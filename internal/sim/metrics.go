package sim

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// The metrics are the engine's own names, written as an engine writes them: they are
// input of what scrapes engines, not this project's telemetry, so no registry takes
// part.

// bounds are the upper edges, in seconds, of all time histograms.
var bounds = [...]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

type histogram struct {
	counts [len(bounds) + 1]uint64
	sum    float64
}

func (h *histogram) observe(d time.Duration) {
	v, i := d.Seconds(), 0
	for i < len(bounds) && v > bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

// times are a rank's histograms.
type times struct {
	ttft, itl, e2e, queue histogram
	finished              map[string]uint64 // by finish_reason
}

// observeLocked takes in one sequence's step. It reads c before c advances.
func (r *rank) observeLocked(c *choice, p Progress, now time.Time) {
	t := &r.mu.times
	last := c.progress().last
	switch {
	case p.FirstToken:
		t.ttft.observe(now.Sub(c.gen.started))
		t.queue.observe(p.Seq.Admitted.Sub(c.gen.started))
	case !last.IsZero():
		t.itl.observe(now.Sub(last))
	}
	if p.Finished {
		t.e2e.observe(now.Sub(c.gen.started))
		if t.finished == nil {
			t.finished = map[string]uint64{}
		}
		t.finished[c.reply.finish]++
	}
}

// exposition builds the Prometheus text format.
type exposition struct{ b []byte }

func (x *exposition) head(name, kind string) {
	x.b = append(append(append(append(append(x.b, "# TYPE "...), name...), ' '), kind...), '\n')
}

func (x *exposition) value(name, labels string, v float64) {
	x.b = append(x.b, name...)
	if labels != "" {
		x.b = append(append(append(x.b, '{'), labels...), '}')
	}
	x.b = append(x.b, ' ')
	x.b = strconv.AppendFloat(x.b, v, 'g', -1, 64)
	x.b = append(x.b, '\n')
}

func (x *exposition) histogram(name, labels string, h *histogram) {
	var n uint64
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(bounds) {
			le = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		x.value(name+"_bucket", labels+`,le="`+le+`"`, float64(n))
	}
	x.value(name+"_sum", labels, h.sum)
	x.value(name+"_count", labels, float64(n))
}

// family is one metric and where its value comes from.
type family struct {
	name, kind string
	value      func(s Stats) float64
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func kvUsage(s Stats) float64 { return ratio(float64(s.UsedBlocks), float64(s.TotalBlocks)) }

var vllmFamilies = []family{
	{"vllm:num_requests_running", "gauge", func(s Stats) float64 { return float64(s.Running) }},
	{"vllm:num_requests_waiting", "gauge", func(s Stats) float64 { return float64(s.Waiting) }},
	{"vllm:kv_cache_usage_perc", "gauge", kvUsage},
	{"vllm:prefix_cache_queries_total", "counter", func(s Stats) float64 { return float64(s.PrefixQueries) }},
	{"vllm:prefix_cache_hits_total", "counter", func(s Stats) float64 { return float64(s.PrefixHits) }},
	{"vllm:prompt_tokens_total", "counter", func(s Stats) float64 { return float64(s.PromptTokens) }},
	{"vllm:prompt_tokens_cached_total", "counter", func(s Stats) float64 { return float64(s.PrefixHits) }},
	{"vllm:generation_tokens_total", "counter", func(s Stats) float64 { return float64(s.GeneratedTokens) }},
	{"vllm:num_preemptions_total", "counter", func(s Stats) float64 { return float64(s.Preemptions) }},
}

var sglangFamilies = []family{
	{"sglang:num_running_reqs", "gauge", func(s Stats) float64 { return float64(s.Running) }},
	{"sglang:num_queue_reqs", "gauge", func(s Stats) float64 { return float64(s.Waiting) }},
	{"sglang:token_usage", "gauge", kvUsage},
	{"sglang:num_used_tokens", "gauge", func(s Stats) float64 { return float64(s.KVTokens) }},
	{"sglang:cache_hit_rate", "gauge", func(s Stats) float64 { return ratio(float64(s.PrefixHits), float64(s.PrefixQueries)) }},
	{"sglang:prompt_tokens_total", "counter", func(s Stats) float64 { return float64(s.PromptTokens) }},
	{"sglang:cached_tokens_total", "counter", func(s Stats) float64 { return float64(s.PrefixHits) }},
	{"sglang:generation_tokens_total", "counter", func(s Stats) float64 { return float64(s.GeneratedTokens) }},
	{"sglang:num_retracted_reqs_total", "counter", func(s Stats) float64 { return float64(s.Preemptions) }},
}

func (s *Server) serveMetrics(ctx *fasthttp.RequestCtx) {
	families, prefix, rankLabel := vllmFamilies, "vllm:", "engine"
	if s.cfg.Like == SGLang {
		families, prefix, rankLabel = sglangFamilies, "sglang:", "dp_rank"
	}
	labels := make([]string, len(s.ranks))
	stats := make([]Stats, len(s.ranks))
	all := make([]times, len(s.ranks))
	for i, r := range s.ranks {
		labels[i] = "model_name=" + quote(s.cfg.AdvertiseModel) + "," + rankLabel + `="` + strconv.Itoa(i) + `"`
		r.mu.Lock()
		stats[i], all[i] = r.mu.engine.Stats(), r.mu.times
		all[i].finished = nil
		for k, v := range r.mu.times.finished {
			if all[i].finished == nil {
				all[i].finished = map[string]uint64{}
			}
			all[i].finished[k] = v
		}
		r.mu.Unlock()
	}
	var x exposition
	for _, f := range families {
		x.head(f.name, f.kind)
		for i := range s.ranks {
			x.value(f.name, labels[i], f.value(stats[i]))
		}
	}
	for _, h := range []struct {
		name string
		of   func(t *times) *histogram
	}{
		{"time_to_first_token_seconds", func(t *times) *histogram { return &t.ttft }},
		{"inter_token_latency_seconds", func(t *times) *histogram { return &t.itl }},
		{"e2e_request_latency_seconds", func(t *times) *histogram { return &t.e2e }},
		{"request_queue_time_seconds", func(t *times) *histogram { return &t.queue }},
	} {
		x.head(prefix+h.name, "histogram")
		for i := range s.ranks {
			x.histogram(prefix+h.name, labels[i], h.of(&all[i]))
		}
	}
	e := s.cfg.Engine
	blocks := e.CapacityTokens / e.BlockSize
	if s.cfg.Like == SGLang {
		x.head("sglang:max_total_num_tokens", "gauge")
		x.head("sglang:page_size", "gauge")
		for i := range s.ranks {
			x.value("sglang:max_total_num_tokens", labels[i], float64(blocks*e.BlockSize))
			x.value("sglang:page_size", labels[i], float64(e.BlockSize))
		}
	} else {
		x.head("vllm:request_success_total", "counter")
		for i := range s.ranks {
			for _, reason := range []string{"stop", "length", "tool_calls"} {
				if n := all[i].finished[reason]; n > 0 {
					x.value("vllm:request_success_total", labels[i]+`,finished_reason="`+reason+`"`, float64(n))
				}
			}
		}
		if e.Drafts {
			x.head("vllm:spec_decode_num_drafts_total", "counter")
			for i := range s.ranks {
				x.value("vllm:spec_decode_num_drafts_total", labels[i], float64(stats[i].GeneratedTokens))
			}
		}
		x.head("vllm:cache_config_info", "gauge")
		for i := range s.ranks {
			x.value("vllm:cache_config_info", `engine="`+strconv.Itoa(i)+`",block_size="`+strconv.Itoa(e.BlockSize)+
				`",num_gpu_blocks="`+strconv.Itoa(blocks)+`",enable_prefix_caching="True",cache_dtype="auto"`, 1)
		}
	}
	x.head("sim:requests_refused_total", "counter")
	x.value("sim:requests_refused_total", "", float64(s.refused.Load()))
	ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
	ctx.SetBody(x.b)
}
