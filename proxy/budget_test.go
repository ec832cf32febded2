package proxy

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestBudget_ShareAndFloor(t *testing.T) {
	var b budget
	now := time.Unix(1_000_000, 0)
	draw := func(most int) (n int) {
		for n < most && b.withdraw(now) {
			n++
		}
		return n
	}
	if n := draw(1000); n != retryFloor*retryWindow {
		t.Errorf("%d retries without a request", n)
	}
	now = now.Add(retryWindow * time.Second)
	for range 1000 {
		b.request(now)
	}
	if n := draw(1000); n != 200+retryFloor*retryWindow {
		t.Errorf("%d retries of 1,000 requests", n)
	}
	now = now.Add((retryWindow - 1) * time.Second)
	if n := draw(1000); n != 0 {
		t.Errorf("%d retries before the window has passed", n)
	}
	now = now.Add(time.Second)
	if n := draw(1000); n != retryFloor*retryWindow {
		t.Errorf("%d retries in the next window", n)
	}
}

// TestRetry_BudgetSparesADyingPool: where every worker refuses, requests are not
// multiplied by the retries.
func TestRetry_BudgetSparesADyingPool(t *testing.T) {
	refuse := func(c *call) bool {
		c.json(503, "", `{"error":{"message":"out of memory","type":"y"}}`)
		return true
	}
	a, b, d := startWorker(t, refuse), startWorker(t, refuse), startWorker(t, refuse)
	r := newRig(t, setup{}, a, b, d)
	const total = 400
	var next, refused atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for next.Add(1) <= total {
				if resp, _, err := r.exchange(request(pathChat, "", plainBody)); err == nil && resp.StatusCode == 503 {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	calls := int(a.calls.Load() + b.calls.Load() + d.calls.Load())
	if most := total + total/5 + retryFloor*retryWindow; refused.Load() != total || calls > most || calls < total+retryFloor*retryWindow {
		t.Errorf("%d of %d refused in the worker's words; %d calls, at most %d", refused.Load(), total, calls, most)
	}
	if n := r.metric("warmroute_proxy_retry_budget_exhausted_total"); n == 0 {
		t.Error("nothing counted")
	}
	r.stop()
}
