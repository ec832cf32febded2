package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// ErrUnreachable marks the errors that may pass without anybody's help: no connection, a
// server error, too many requests. Every other error of Dir wants the user to change
// something first.
var ErrUnreachable = errors.New("hub unreachable")

// required is the file without which a directory is of no use; optional ones add the chat
// template, special tokens and end-of-sequence ids.
const required = "tokenizer.json"

var optional = []string{
	"tokenizer_config.json", "chat_template.jinja", "chat_template.json",
	"special_tokens_map.json", "generation_config.json", "config.json",
}

// otherFormats are tokenizers that a repository may hold in place of tokenizer.json.
var otherFormats = []string{"tokenizer.model", "tekken.json", "vocab.json"}

// Config says where the hub and the cache are. The zero value follows the environment
// variables of huggingface_hub.
type Config struct {
	// Endpoint is the hub's address, or a mirror's. Default: $HF_ENDPOINT, else
	// https://huggingface.co.
	Endpoint string
	// Token opens gated and private repositories. It is sent to the endpoint (and to
	// https://huggingface.co, if the endpoint redirects there) and to no other host.
	// Default: $HF_TOKEN, else the file $HF_TOKEN_PATH or $HF_HOME/token.
	Token string
	// Cache is the directory with the models--org--name folders. Default: $HF_HUB_CACHE,
	// else $HF_HOME/hub, else huggingface/hub under $XDG_CACHE_HOME or ~/.cache.
	Cache string
	// Offline forbids requests. Default: $HF_HUB_OFFLINE or $TRANSFORMERS_OFFLINE.
	Offline bool
	// Getenv reads the environment; nil means os.Getenv.
	Getenv func(string) string
	// Client sends the requests; its CheckRedirect is not used. Default: a client with
	// timeouts and the proxy of the environment.
	Client *http.Client
	// Notice receives one line whenever Dir succeeds although it could not bring a snapshot
	// up to date. It may be called from several goroutines. Default: nobody is told.
	Notice func(message string)
}

// Hub finds and fetches tokenizer files. It is safe for concurrent use.
type Hub struct {
	endpoint *url.URL
	token    string
	cache    string // absolute
	offline  bool
	online   string // what would end that
	client   *http.Client
	notice   func(string)
	invalid  error                           // settings that no call can work with
	symlink  func(target, name string) error // os.Symlink
	maxFile  int64                           // bytes

	mu struct {
		sync.Mutex
		flights map[string]*flight
		away    time.Time // until then the hub, which hung, is not asked
	}
}

// flight is one lookup that several callers wait for. Its fields are set before done closes.
type flight struct {
	done      chan struct{}
	dir       string
	err       error
	abandoned bool // its caller gave up, which says nothing about the model
}

// New reads the settings; it sends nothing. What is wrong with them is Dir's error.
func New(c Config) *Hub {
	env := environ(c.Getenv)
	if env == nil {
		env = os.Getenv
	}
	h := &Hub{
		token:   cmp.Or(c.Token, env.token()),
		cache:   cmp.Or(c.Cache, env.cache()),
		offline: c.Offline || env.offline(),
		notice:  c.Notice,
		client:  manual(c.Client),
		symlink: os.Symlink,
		maxFile: maxFile,
		online:  "the network allowed",
	}
	if env.offline() {
		h.online = "HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE unset"
	}
	h.mu.flights = make(map[string]*flight)
	var errs [3]error
	h.endpoint, errs[0] = parseEndpoint(cmp.Or(c.Endpoint, env.first("HF_ENDPOINT"), defaultEndpoint))
	errs[1] = checkToken(h.token)
	if h.cache == "" {
		errs[2] = errors.New("no cache directory for tokenizer files: set HF_HOME or HF_HUB_CACHE")
	} else {
		h.cache, errs[2] = filepath.Abs(h.cache)
	}
	h.invalid = errors.Join(errs[:]...)
	return h
}

// manual returns a client that leaves redirects to us; nil stands for our own.
func manual(c *http.Client) *http.Client {
	if c == nil {
		c = &http.Client{Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: bodyStall,
			IdleConnTimeout:       30 * time.Second,
			MaxIdleConnsPerHost:   2,
			ForceAttemptHTTP2:     true,
		}}
	}
	own := *c
	own.Transport = unredirected{own.Transport}
	return &own
}

// Dir returns a directory that holds the model's tokenizer.json and whichever of
// tokenizer_config.json, chat_template.jinja, chat_template.json, special_tokens_map.json,
// generation_config.json and config.json exist at the revision: a branch, a tag, a commit,
// or "" for main. The directory belongs to the cache: read it, never write to it.
//
// A commit whose files are cached costs no request; a branch costs one, and the files that
// its commit changed. If the hub does not help and the cache holds a snapshot of the
// revision, Dir returns that one and tells Config.Notice. ctx bounds the whole call; callers
// that ask for the same thing at the same time share one lookup.
func (h *Hub) Dir(ctx context.Context, id, revision string) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	revision = cmp.Or(revision, "main")
	if err := checkRevision(revision); err != nil {
		return "", fmt.Errorf("model %s: %w", id, err)
	}
	if h.invalid != nil {
		return "", fmt.Errorf("model %s: %w", id, h.invalid)
	}
	dir, err := h.share(ctx, id+"@"+revision, func() (string, error) {
		return h.locate(ctx, source{id: id, revision: revision, repo: h.repo(id)})
	})
	if err != nil {
		return "", fmt.Errorf("model %s: %w", id, err)
	}
	return dir, nil
}

// share runs work once for all callers of a key. The first caller runs it, with its own
// context; if that one gives up, a waiting caller takes over.
func (h *Hub) share(ctx context.Context, key string, work func() (string, error)) (string, error) {
	for {
		h.mu.Lock()
		f, waiting := h.mu.flights[key]
		if !waiting {
			f = &flight{done: make(chan struct{}), abandoned: true}
			h.mu.flights[key] = f
		}
		h.mu.Unlock()
		if !waiting {
			defer h.land(key, f)
			f.dir, f.err = work()
			f.abandoned = f.err != nil && ctx.Err() != nil
			return f.dir, f.err
		}
		select {
		case <-f.done:
			if !f.abandoned {
				return f.dir, f.err
			}
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (h *Hub) land(key string, f *flight) {
	h.mu.Lock()
	delete(h.mu.flights, key)
	h.mu.Unlock()
	close(f.done)
}

// source is what one lookup is about. The id and the revision are checked.
type source struct {
	id, revision string
	repo         repo
}

// locate decides between the cache and the hub.
func (h *Hub) locate(ctx context.Context, s source) (string, error) {
	if isCommit(s.revision) {
		if s.repo.complete(s.revision) {
			return s.repo.snapshot(s.revision), nil
		}
		if s.repo.absent(s.revision, required) {
			return "", noTokenizer(s, "")
		}
	}
	cached := s.repo.cached(s.revision)
	if h.offline {
		if cached == "" {
			return "", fmt.Errorf("offline, and %s of revision %s is not in the cache %s: fetch it once with %s, or set HF_HUB_CACHE to a cache that has it",
				required, quote(s.revision), h.cache, h.online)
		}
		return s.repo.snapshot(cached), nil
	}
	commit, err := h.unlessAway(ctx, func() (string, error) { return h.update(ctx, s, cached != "") })
	if err == nil {
		return s.repo.snapshot(commit), nil
	}
	var f *failure
	if cached == "" || errors.Is(ctx.Err(), context.Canceled) || errors.As(err, &f) && (f.kind == missing || f.kind == noRevision) {
		return "", err
	}
	if h.notice != nil {
		h.notice(fmt.Sprintf("model %s: using the cached snapshot %s of revision %s: %v", s.id, cached, quote(s.revision), err))
	}
	return s.repo.snapshot(cached), nil
}

// awayFor is how long a hub that hangs is left alone: others wait for what asks it.
const awayFor = 30 * time.Second

// unlessAway asks the hub, except soon after it kept somebody waiting for nothing.
func (h *Hub) unlessAway(ctx context.Context, ask func() (string, error)) (string, error) {
	h.mu.Lock()
	away := h.mu.away
	h.mu.Unlock()
	from := time.Now()
	if from.Before(away) {
		return "", &failure{kind: unreachable, text: h.address() + " did not answer a moment ago"}
	}
	commit, err := ask()
	if errors.Is(err, ErrUnreachable) && ctx.Err() == nil && time.Since(from) >= headStall {
		h.mu.Lock()
		h.mu.away = time.Now().Add(awayFor)
		h.mu.Unlock()
	}
	return commit, err
}

// update brings the snapshot of the revision's commit up to date and returns the commit.
func (h *Hub) update(ctx context.Context, s source, cached bool) (string, error) {
	commit := s.revision
	if !isCommit(commit) || !cached {
		// Whoever has a snapshot to fall back on does not wait for a hub that is away.
		attempts := tries
		if cached {
			attempts = 1
		}
		var err error
		if commit, err = h.head(ctx, s, s.revision, required, attempts); err != nil {
			var f *failure
			if errors.As(err, &f) && f.kind == missing {
				return "", noTokenizer(s, h.otherFormat(ctx, s))
			}
			return "", err
		}
	}
	for _, name := range append(optional[:len(optional):len(optional)], required) {
		if s.repo.has(commit, name) || s.repo.absent(commit, name) {
			continue
		}
		err := h.get(ctx, s, commit, name)
		var f *failure
		if errors.As(err, &f) && f.kind == missing && name != required {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("fetch %s: %w", name, err)
		}
	}
	// The files are there; a cache that may only be read keeps its old ref.
	_ = s.repo.setRef(s.revision, commit)
	return commit, nil
}

// otherFormat names a tokenizer file that is not tokenizer.json, "" if none is seen.
func (h *Hub) otherFormat(ctx context.Context, s source) string {
	for _, name := range otherFormats {
		if _, err := h.head(ctx, s, s.revision, name, 1); err == nil {
			return name
		}
	}
	return ""
}

func noTokenizer(s source, other string) error {
	has := "has no " + required
	if other != "" {
		has = "has " + other + " but no " + required
	}
	return &failure{kind: missing, text: fmt.Sprintf("the repository %s at revision %s, and no other tokenizer format is read: give the path of a directory that has one (transformers writes it with save_pretrained)",
		has, quote(s.revision))}
}
