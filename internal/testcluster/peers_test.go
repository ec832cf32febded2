package testcluster

import (
	"testing"
	"time"
)

// Two proxies over eight workers at concurrency 8 have about one request for each
// worker. A proxy that does not see the other's takes busy workers for idle ones; with
// the other's bookings it does as well as one proxy for all.
func TestPeers_BookingsSpreadTheLoad(t *testing.T) {
	conversations := 100
	if testing.Short() {
		conversations = 48
	}
	play := func(name string, cfg Config) *Result {
		cfg.Concurrency, cfg.Stagger, cfg.Seed = 8, stagger, 1
		r := mustRun(t, cfg, Seed(conversations, 1))
		t.Logf("%-22s reuse %.3f, %.3f rps, TTFT %.2f s, TPOT %.2f ms, E2E %.2f s, max/mean %.2f, same worker %.2f (%.1f s wall)",
			name, r.Reuse, r.RPS, r.TTFT.Mean, 1e3*r.TPOT.Mean, r.E2E.Mean, r.MaxOverMean, r.SameWorker, r.Wall.Seconds())
		return r
	}
	one := play("one proxy", Config{})
	blind := play("two, no bookings", Config{Routers: 2})
	for name, cfg := range map[string]Config{
		"two, bookings":        {Routers: 2, BookingDelay: time.Millisecond},
		"two, 100 ms late":     {Routers: 2, BookingDelay: 100 * time.Millisecond},
		"four, bookings":       {Routers: 4, BookingDelay: time.Millisecond},
		"two, 1 of 5 are lost": {Routers: 2, BookingDelay: time.Millisecond, LoseBookings: 5},
	} {
		r := play(name, cfg)
		if r.MaxOverMean > 1.4 || r.MaxOverMean > 0.7*blind.MaxOverMean {
			t.Errorf("%s: the busiest worker got %.2f times the mean of requests, want ≤ 1.4; %.2f without bookings", name, r.MaxOverMean, blind.MaxOverMean)
		}
		if r.RPS < 0.95*one.RPS || r.RPS < 1.08*blind.RPS {
			t.Errorf("%s: %.3f rps, want within 5 %% of one proxy's %.3f and 8 %% over %.3f without bookings", name, r.RPS, one.RPS, blind.RPS)
		}
		if r.E2E.Mean > 1.05*one.E2E.Mean {
			t.Errorf("%s: E2E %.2f s, want within 5 %% of one proxy's %.2f", name, r.E2E.Mean, one.E2E.Mean)
		}
	}
}

// Where contexts nearly fill the caches, the same prompts booked by several proxies
// must not look like more KV than there is.
func TestPeers_NearCapacity(t *testing.T) {
	sessions := 72
	if testing.Short() {
		sessions = 24
	}
	cfg := Config{Concurrency: sessions, Stagger: stagger, Seed: 1}
	one := mustRun(t, cfg, Agents(sessions, 1))
	for _, routers := range []int{2, 4} {
		cfg.Routers, cfg.BookingDelay = routers, 0
		blind := mustRun(t, cfg, Agents(sessions, 1))
		cfg.BookingDelay = time.Millisecond
		r := mustRun(t, cfg, Agents(sessions, 1))
		t.Logf("%d proxies: TTFT %.3f s, E2E %.2f s, reuse %.3f; without bookings %.3f, %.2f, %.3f; one proxy %.3f, %.2f, %.3f", routers,
			r.TTFT.Mean, r.E2E.Mean, r.Reuse, blind.TTFT.Mean, blind.E2E.Mean, blind.Reuse, one.TTFT.Mean, one.E2E.Mean, one.Reuse)
		if r.E2E.Mean > 1.05*one.E2E.Mean || r.E2E.Mean > 1.02*blind.E2E.Mean {
			t.Errorf("%d proxies: E2E %.2f s, want within 5 %% of one proxy's %.2f and no more than the %.2f without bookings", routers, r.E2E.Mean, one.E2E.Mean, blind.E2E.Mean)
		}
	}
}
