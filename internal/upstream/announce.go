package upstream

import (
	"fmt"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/kv"
)

// announcementLife is how long a worker that is known by announcement alone stays without
// one.
const announcementLife = 15 * time.Second

// maxUnjoined bounds the announced workers that are remembered as unknown.
const maxUnjoined = 256

// Resolve joins an announcement to a worker: by id, then by URL, then by admission of a
// worker that is allowed. It is events.ConsumerConfig.Resolve.
func (f *Fleet) Resolve(a *events.Announcement) (id string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resolveLocked(a)
}

func (f *Fleet) resolveLocked(a *events.Announcement) (id string, ok bool) {
	if _, known := f.mu.byID[a.Worker]; known {
		return a.Worker, true
	}
	base, err := parseBaseURL(a.URL)
	if err != nil {
		return "", false
	}
	for _, w := range f.mu.byID {
		if w.base.url == base.url {
			return w.id, true
		}
	}
	return a.Worker, a.Worker != "" && f.allow.match(base)
}

// OnAnnouncement keeps the announced workers. It is events.ConsumerConfig.OnAnnouncement.
func (f *Fleet) OnAnnouncement(a *events.Announcement, joined bool) {
	now := time.Now()
	f.mu.Lock()
	id, ok := f.resolveLocked(a)
	switch {
	case !joined || !ok:
		f.reportUnjoinedLocked(a, now)
		f.mu.Unlock()
		return
	case a.Farewell:
		w := f.mu.byID[id]
		if w != nil && w.announced {
			delete(f.mu.byID, id)
			f.relistLocked()
		}
		f.mu.Unlock()
		if w != nil && w.announced {
			f.cfg.Logger.Info("announced worker said farewell", "worker", id)
			f.notify()
		}
		return
	}
	delete(f.mu.unjoined, a.Worker)
	f.metrics.unjoined.Set(float64(len(f.mu.unjoined)))
	w := f.mu.byID[id]
	added := false
	if w == nil && len(f.mu.byID) < maxAnnounced {
		var err error
		if w, err = f.newWorker(WorkerConfig{ID: id, URL: a.URL}, true); err == nil {
			f.mu.byID[id] = w
			f.relistLocked()
			added = true
		}
	}
	f.mu.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	w.mu.seen = now
	w.mu.Unlock()
	if added {
		f.cfg.Logger.Info("worker joined by announcement", "worker", id, "url", w.base.url, "relay", a.Relay)
		f.notify()
	}
}

// reportUnjoinedLocked remembers an announcement that nobody can use and logs it once.
func (f *Fleet) reportUnjoinedLocked(a *events.Announcement, now time.Time) {
	u, known := f.mu.unjoined[a.Worker]
	if !known && (a.Farewell || len(f.mu.unjoined) >= maxUnjoined) {
		return
	}
	if a.Farewell {
		delete(f.mu.unjoined, a.Worker)
	} else {
		u = Unjoined{Worker: a.Worker, URL: a.URL, Relay: a.Relay, Seen: now, Reason: "no configured worker has this id or URL: " +
			"configure one with this id, or list its host in allow_announced (--allow-announced)"}
		f.mu.unjoined[a.Worker] = u
	}
	f.metrics.unjoined.Set(float64(len(f.mu.unjoined)))
	if !known {
		f.cfg.Logger.Warn("KV events of an unknown worker", "worker", a.Worker, "url", a.URL, "relay", a.Relay, "reason", u.Reason)
	}
}

// feedGrace is how long a feed may be less than complete before the log says so: at the
// start, at a reconnect and at the end every feed is for a moment.
const feedGrace = 3 * time.Second

// feedNews is a state of a feed that the log may have to tell.
type feedNews struct {
	since time.Time
	said  bool
}

// OnFeed passes the state of a rank's feed to the router and logs what changed. It is
// events.ConsumerConfig.OnFeed.
func (f *Fleet) OnFeed(s events.FeedStatus) {
	w := f.Worker(s.Rank.ID)
	if w == nil {
		return
	}
	w.mu.Lock()
	old, had := w.mu.feeds[s.Rank.Rank]
	w.mu.feeds[s.Rank.Rank] = s
	changed := !had || old.State != s.State || old.Reason != s.Reason
	if changed {
		w.mu.news[s.Rank.Rank] = feedNews{since: time.Now(), said: s.Reason == ""}
	}
	w.mu.Unlock()
	f.tellFeed(w, s.Rank.Rank)
	if changed && s.Reason == "" {
		logFeed(f.cfg.Logger.Info, s)
	}
}

// reportFeeds logs the feeds in which something has been wrong for feedGrace, once each.
func (w *Worker) reportFeeds(now time.Time) {
	var report []events.FeedStatus
	w.mu.Lock()
	for rank, n := range w.mu.news {
		if !n.said && now.Sub(n.since) >= feedGrace {
			w.mu.news[rank] = feedNews{said: true}
			report = append(report, w.mu.feeds[rank])
		}
	}
	w.mu.Unlock()
	for _, s := range report {
		logFeed(w.f.cfg.Logger.Warn, s)
	}
}

func logFeed(log func(string, ...any), s events.FeedStatus) {
	log("KV event feed", "worker", s.Rank.ID, "rank", s.Rank.Rank, "state", fmt.Sprint(s.State), "reason", s.Reason,
		"block_size", s.BlockSize, "blocks", s.Blocks)
}

// tellFeed gives the router the feed of one rank as it stands.
func (f *Fleet) tellFeed(w *Worker, rank int) {
	f.publishing.Lock()
	defer f.publishing.Unlock()
	if f.Worker(w.id) != w {
		return
	}
	s := w.feed(rank)
	feed := router.Feed{State: routerState(s.State), Reason: s.Reason, BlockSize: s.BlockSize}
	f.cfg.Router.SetFeed(kv.WorkerRank{ID: w.id, Rank: rank}, feed)
}

// routerState maps a feed's state to what it is worth to the router: while a rank
// resyncs, its last consistent state stands.
func routerState(s events.FeedState) string {
	switch s {
	case events.FeedComplete:
		return router.FeedComplete
	case events.FeedPartial:
		return router.FeedPartial
	case events.FeedStale, events.FeedResyncing:
		return router.FeedStale
	}
	return router.FeedNone
}

// feed returns the state of one rank's feed, with the reason why there is none.
func (w *Worker) feed(rank int) events.FeedStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.mu.feeds[rank]
	if !ok {
		s = events.FeedStatus{Rank: kv.WorkerRank{ID: w.id, Rank: rank}, State: events.FeedNone}
	}
	if s.State == events.FeedNone && s.Reason == "" {
		switch engine := w.engineLocked(); {
		case w.mu.facts == nil:
			s.Reason = reasonUnprobed
		case w.cfg.Events != "":
			s.Reason = silentReason(engine, w.cfg.Events)
		default:
			s.Reason = eventsReason(engine)
		}
	}
	return s
}

func (w *Worker) engineLocked() string {
	if w.mu.facts != nil {
		return w.mu.facts.engine
	}
	return w.cfg.Engine
}

// tellMissing tells the router of ranks that have no feed.
func (w *Worker) tellMissing() {
	for rank := range w.ranks(w.known()) {
		if w.feed(rank).State == events.FeedNone {
			w.f.tellFeed(w, rank)
		}
	}
}

// reportMissing logs once that a worker has no feed at feedGrace after it was found: the
// announcement of a relay comes every 2 s.
func (w *Worker) reportMissing(now time.Time) {
	w.mu.Lock()
	facts := w.mu.facts
	due := facts != nil && !w.mu.silent && now.Sub(w.mu.foundAt) >= feedGrace && w.cfg.Events == "" && facts.advert == nil
	w.mu.Unlock()
	if !due {
		return
	}
	for rank := range w.ranks(facts) {
		if s := w.feed(rank); s.State == events.FeedNone {
			w.mu.Lock()
			w.mu.silent = true
			w.mu.Unlock()
			w.f.cfg.Logger.Warn("worker sends no KV events", "worker", w.id, "engine", facts.engine, "reason", s.Reason)
			return
		}
	}
}

// forget drops the workers and strangers whose announcements have ceased. While our own
// connection to the bus is down nobody can be heard, so nobody is forgotten.
func (f *Fleet) forget(now time.Time) {
	f.mu.Lock()
	connected := f.cfg.Bus == nil || f.cfg.Bus.Connected()
	var gone []string
	for id, w := range f.mu.byID {
		if !w.announced {
			continue
		}
		w.mu.Lock()
		if !connected {
			w.mu.seen = now
		}
		silent := now.Sub(w.mu.seen) > announcementLife
		w.mu.Unlock()
		if silent {
			gone = append(gone, id)
			delete(f.mu.byID, id)
		}
	}
	for id, u := range f.mu.unjoined {
		if connected && now.Sub(u.Seen) > announcementLife {
			delete(f.mu.unjoined, id)
		}
	}
	f.metrics.unjoined.Set(float64(len(f.mu.unjoined)))
	if len(gone) > 0 {
		f.relistLocked()
	}
	f.mu.Unlock()
	for _, id := range gone {
		f.cfg.Logger.Warn("announced worker is silent: no requests go to it", "worker", id, "after", announcementLife)
	}
	if len(gone) > 0 {
		f.notify()
	}
}
