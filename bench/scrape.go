package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// metricsPrefix is what warm-up metrics of the proxy start with.
	metricsPrefix = "warmroute_prefill_"
	// Warm-ups that are under way or wait; both are zero once the last block's have ended.
	inflightGauge = metricsPrefix + "inflight"
	queueGauge    = metricsPrefix + "queue"
	metricsLimit  = 16 << 20
)

// scraper reads the proxy's warm-up metrics. Without a URL it reads nothing.
type scraper struct {
	url       string
	transport http.RoundTripper
}

// read returns the value of each warm-up series, nil without a URL.
func (s *scraper) read(ctx context.Context) (map[string]float64, error) {
	if s.url == "" {
		return nil, nil
	}
	// A run that was interrupted still wants to know what its last block cost.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: s.transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", s.url, resp.Status)
	}
	return parseMetrics(io.LimitReader(resp.Body, metricsLimit))
}

// parseMetrics reads the text exposition format and keeps the warm-up series that are
// single numbers: counters and gauges, sums and counts of histograms.
func parseMetrics(r io.Reader) (map[string]float64, error) {
	out := map[string]float64{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, metricsPrefix) {
			continue
		}
		end := strings.IndexByte(line, ' ')
		if brace := strings.IndexByte(line, '{'); brace >= 0 && brace < end {
			close := labelsEnd(line, brace)
			if close < 0 {
				continue
			}
			end = close + 1
		}
		if end < 0 {
			continue
		}
		series := line[:end]
		if name, _, _ := strings.Cut(series, "{"); strings.HasSuffix(name, "_bucket") {
			continue
		}
		value, _, _ := strings.Cut(strings.TrimSpace(line[end:]), " ") // a timestamp may follow
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[series] = v
		}
	}
	return out, lines.Err()
}

// labelsEnd returns the offset of the brace that closes the labels; quoted values may
// hold braces and escaped quotes.
func labelsEnd(line string, open int) int {
	quoted := false
	for i := open + 1; i < len(line); i++ {
		switch line[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// growth returns how much each counter grew; gauges (no _total, _sum or _count) are left
// out. A counter that fell belongs to a proxy that was restarted and counts from zero.
func growth(before, after map[string]float64) map[string]float64 {
	if len(after) == 0 {
		return nil
	}
	out := map[string]float64{}
	for series, v := range after {
		name, _, _ := strings.Cut(series, "{")
		if !strings.HasSuffix(name, "_total") && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			continue
		}
		if b := before[series]; v >= b {
			v -= b
		}
		out[series] = v
	}
	return out
}

// settle pauses between blocks until the warm-ups of the last one have ended.
func (s *scraper) settle(ctx context.Context, pause time.Duration) {
	deadline := time.Now().Add(settleMax)
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		now, err := s.read(ctx)
		if err != nil || time.Now().After(deadline) {
			return
		}
		running := 0.0
		for series, v := range now {
			if name, _, _ := strings.Cut(series, "{"); name == inflightGauge || name == queueGauge {
				running += v
			}
		}
		if running == 0 {
			return
		}
	}
}
