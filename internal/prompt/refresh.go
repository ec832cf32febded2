package prompt

import (
	"context"
	"errors"
	"hash/maphash"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/tokenizer"
)

const (
	// refreshesAtOnce bounds the lookups and comparisons under way, loadsAtOnce the files
	// that are being read: up to 100 MB each while they are.
	refreshesAtOnce = 8
	loadsAtOnce     = 2
	// checkAgain is how often a model that is in use is compared with its engine, and how
	// seldom one is tried whose files cannot be had.
	checkAgain = 10 * time.Minute
	// tryAgain is how soon it is tried first. The time doubles where a try is not cheap.
	tryAgain = time.Minute
)

// Run loads models and compares their tokens with those of the engines of the same style
// until ctx ends.
func (m *Models) Run(ctx context.Context, engines func(Style) Source) error {
	var working sync.WaitGroup
	defer working.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		m.forget()
		for s := m.next(); s != nil && ctx.Err() == nil; s = m.next() {
			working.Go(func() { m.refresh(ctx, s, engines(s.style)) })
		}
		timer.Reset(m.untilDue())
	}
}

// next returns the model that is due for the longest time and marks it as busy; nil where
// none is, or enough are busy.
func (m *Models) next() (next *served) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.busy == refreshesAtOnce {
		return nil
	}
	now := time.Now()
	for _, all := range *m.list.Load() {
		for _, s := range all {
			if !s.busy && !s.due.After(now) && (next == nil || s.due.Before(next.due)) {
				next = s
			}
		}
	}
	if next != nil {
		next.busy, next.again = true, false
		m.mu.busy++
	}
	return next
}

// untilDue is the time until a model is due. Who finishes a refresh pokes Run.
func (m *Models) untilDue() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := checkAgain
	if m.mu.busy == refreshesAtOnce {
		return d
	}
	for _, all := range *m.list.Load() {
		for _, s := range all {
			if !s.busy {
				d = min(d, time.Until(s.due))
			}
		}
	}
	return max(d, 0)
}

// refresh loads a model's files where they are new and compares its tokens. Origins beside
// the one in use count when that one is not right.
func (m *Models) refresh(ctx context.Context, s *served, engine Source) {
	m.mu.Lock()
	origins := slices.Clone(s.origins)
	m.mu.Unlock()
	var best *origin
	costly := false
	for _, p := range origins {
		costly = m.try(ctx, s, p, engine) || costly
		if ctx.Err() != nil {
			return
		}
		if best == nil || p.use.better(best.use) {
			best = p
		}
		if best.use.model != nil && !best.use.degraded {
			break
		}
	}
	m.put(s, best.use)
	m.finish(s, best, costly)
}

// finish says when a model is due again and drops the files that no model has any more.
func (m *Models) finish(s *served, best *origin, costly bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(s.origins, best); i > 0 {
		s.origins = append([]*origin{best}, slices.Delete(s.origins, i, i+1)...)
	}
	again := checkAgain
	switch u := best.use; {
	case u.model != nil && !u.degraded && u.note == "" && !u.compared.IsZero():
		s.fails = 0
	case costly:
		again = min(tryAgain<<min(s.fails, 10), checkAgain)
		s.fails++
	default:
		again = tryAgain
	}
	s.due = time.Now().Add(again)
	if s.again {
		s.due = time.Time{}
	}
	s.busy = false
	m.mu.busy--
	m.sweepLocked()
	m.poke()
}

// sweepLocked drops the files that no model has.
func (m *Models) sweepLocked() {
	used := map[string]bool{}
	for _, all := range *m.list.Load() {
		for _, s := range all {
			for _, p := range s.origins {
				used[p.dir] = true
			}
		}
	}
	maps.DeleteFunc(m.mu.loaded, func(dir string, _ *files) bool { return !used[dir] })
}

// forget drops the models that no worker has any more.
func (m *Models) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := time.Now().Add(-forgetAfter).UnixNano()
	old := func(s *served) bool { return !s.busy && s.offered.Load() < last }
	list := *m.list.Load()
	var next map[string][]*served
	for name, all := range list {
		if !slices.ContainsFunc(all, old) {
			continue
		}
		if next == nil {
			next = maps.Clone(list)
		}
		if next[name] = slices.DeleteFunc(slices.Clone(all), old); len(next[name]) == 0 {
			delete(next, name)
			m.metrics.local.DeleteLabelValues(name)
		}
	}
	if next != nil {
		m.list.Store(&next)
		m.sweepLocked()
	}
}

// try finds out what an origin is worth. It tells whether doing so soon again would cost more
// than a look at a few files.
func (m *Models) try(ctx context.Context, s *served, p *origin, engine Source) (costly bool) {
	old := p.use
	if old == nil {
		old = &usable{}
	}
	model, costly, err := m.load(ctx, p)
	if ctx.Err() != nil {
		return true
	}
	note := ""
	if err != nil && old.model == nil {
		_, set := m.configured(s.name)
		p.use = &usable{why: shorten(err.Error()), degraded: set}
		return costly
	}
	if err != nil { // what was loaded serves on
		model, note = old.model, "its files cannot be read again: "+shorten(err.Error())
	}
	use := *old
	if old.model != model || old.compared.IsZero() || time.Since(old.compared) >= checkAgain {
		var known []verdict
		if old.model == model {
			known = old.verdicts
		}
		use = *m.compare(ctx, s.name, model, s.style, known, engine)
		costly = costly || use.hung
	}
	use.note = note
	p.use = &use
	return costly
}

// put replaces what is known of a model and says so once.
func (m *Models) put(s *served, u *usable) {
	old := s.use.Swap(u)
	local := 0.0
	for _, s := range m.current(s.name) {
		if u := s.use.Load(); u.model != nil && u.off[chats] == "" {
			local = 1
		}
	}
	m.metrics.local.WithLabelValues(s.name).Set(local)
	if old.model == u.model && old.why == u.why && old.note == u.note && old.off == u.off {
		return
	}
	log := m.cfg.Logger.With("model", s.name)
	switch {
	case u.model == nil && u.degraded:
		log.Warn("model has no local tokenizer: its prompts are tokenized by the engine, else known as text", "reason", u.why)
	case u.model == nil:
		log.Info("model has no local tokenizer: its prompts are tokenized by the engine, else known as text", "reason", u.why)
	case u.degraded:
		log.Error("local tokens are not those of the engine: the engine's are used", "dir", u.model.dir, "difference", u.why)
	case u.note != "":
		log.Warn("model is tokenized here as before", "dir", u.model.dir, "reason", u.note)
	default:
		log.Info("model is tokenized here", "dir", u.model.dir, "vocabulary", u.model.tok.VocabSize(), "memory_bytes", u.model.tok.Bytes(), "note", u.why)
	}
}

// files are a directory that is loaded, or why it cannot be.
type files struct {
	reading sync.Mutex // held while the files are read; guards all below
	stamp   string     // of the files when they were read
	model   *Model
	err     error
}

var errNoFinder = errors.New("no tokenizer files are looked for")

// load returns the model of an origin. Files that did not change are not read again. It tells
// whether finding them costs more than a look at a directory.
func (m *Models) load(ctx context.Context, p *origin) (model *Model, costly bool, err error) {
	if m.cfg.Find == nil {
		return nil, false, errNoFinder
	}
	found, err := m.cfg.Find(ctx, p.ref)
	if err != nil {
		return nil, true, err
	}
	dir, err := realDir(found)
	if err != nil {
		return nil, true, err
	}
	m.mu.Lock()
	p.dir = dir
	f := m.mu.loaded[dir]
	if f == nil {
		f = new(files)
		m.mu.loaded[dir] = f
	}
	m.mu.Unlock()
	model, err = m.read(ctx, f, dir)
	return model, found != p.ref, err
}

// realDir is a directory's one name.
func realDir(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func (m *Models) read(ctx context.Context, f *files, dir string) (*Model, error) {
	f.reading.Lock()
	defer f.reading.Unlock()
	stamp := tokenizer.Stamp(dir) // taken first: what changes during the reading is read again
	if f.stamp == stamp {
		return f.model, f.err
	}
	select {
	case m.loads <- struct{}{}:
		defer func() { <-m.loads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	from := time.Now()
	model, err := LoadModel(dir)
	if err == nil {
		m.metrics.load.Observe(time.Since(from).Seconds())
		model.Now = m.cfg.Now
		// Tokens that are kept of other files of this directory are not its own.
		model.id = maphash.String(modelSeed, dir+"\x00"+stamp)
	}
	f.model, f.err, f.stamp = model, err, stamp
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		f.stamp = "" // the reason may lie outside the files
	}
	return model, err
}
