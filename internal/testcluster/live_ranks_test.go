package testcluster_test

import (
	"fmt"
	"testing"
)

// TestLive_FC50_RanksAreApart: the data-parallel ranks behind one URL have caches of their
// own. Each earns credit for what it holds itself, and the proxy's choice of a rank
// reaches the engine.
func TestLive_FC50_RanksAreApart(t *testing.T) {
	const ranks = 3
	for _, like := range engines {
		t.Run(like, func(t *testing.T) {
			n := startNATS(t)
			w := startWorker(t, "w1", eventsAndReplay, "--ranks", fmt.Sprint(ranks), "--like", like, "--speed-up", "10")
			startRelay(t, w, n)
			p := startProxy(t, "proxy", "--nats", n.url(), "-w", w.flag(false))
			waitFor(t, "the proxy to be ready", p.isReady)

			u := newUser()
			defer u.close()
			chats := make([]*chat, 9)
			for turn := range 3 {
				for i := range chats {
					if turn == 0 {
						chats[i] = newChat(uint64(i), 600, 12)
						chats[i].usage = true
					}
					chats[i].say(30)
					a := u.turn(t.Context(), p.url, chats[i])
					if a.outcome != whole {
						t.Fatalf("%v: %s", a.outcome, a.reason)
					}
					if turn > 0 && a.cached < 500 {
						t.Errorf("turn %d: %d of %d tokens cached: another rank has the prefix", turn+1, a.cached, a.prompt)
					}
				}
			}
			for i := range chats {
				chats[i].say(30)
			}
			waitFor(t, "the index to equal the ranks", func() error { return ranksEqual(t, p, w, chats) })
			used := 0
			for rank := range ranks {
				if len(w.truthOf(t, rank).holds) > 0 {
					used++
				}
			}
			if used < 2 {
				t.Errorf("%d of %d idle ranks were used", used, ranks)
			}
		})
	}
}

func ranksEqual(t *testing.T, p *liveProxy, w *liveWorker, chats []*chat) error {
	t.Helper()
	v, err := p.workers()
	if err != nil {
		return err
	}
	held := map[int]int{}
	for _, r := range v.Routing {
		held[r.Rank] = r.HeldBlocks.GPU
	}
	for rank := range w.ranks {
		tr := w.truthOf(t, rank)
		if held[rank] != len(tr.holds) {
			return fmt.Errorf("index has %d blocks of rank %d, which holds %d", held[rank], rank, len(tr.holds))
		}
		for _, c := range chats {
			d, err := p.explain(c.body())
			if err != nil {
				return err
			}
			want := tr.overlap(w.tokens(t, c.body()))
			for _, row := range d.Candidates {
				if row.Rank == rank && row.OverlapBlocks != want {
					return fmt.Errorf("rank %d is credited with %d blocks and holds %d", rank, row.OverlapBlocks, want)
				}
			}
			if want > 0 && d.Rank != rank {
				return fmt.Errorf("rank %d has the prefix, rank %d is chosen", rank, d.Rank)
			}
		}
	}
	return nil
}
