package proxy

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
)

// Key is an API key of the front and what its holder, a tenant, may do. The key itself is
// not kept. Where no key is configured everybody may do everything.
type Key struct {
	Name   string            // of the tenant, in metrics and for the router; see validName
	SHA256 [sha256.Size]byte // of the key's bytes

	Models []string // names or aliases that may be asked for; an alias of a name too; empty is all

	Priority          int // the most urgent class in the router's queue; lower goes first
	MaxInflight       int // requests at a time; 0 is no limit
	RequestsPerMinute int // 0 is no limit
	TokensPerMinute   int // prompt and output together; 0 is no limit

	// CacheSalt keeps the tenant's prefixes apart from those of all others: it replaces
	// whatever salt the request has. "" leaves the choice to the client.
	CacheSalt string
}

// The shortest and longest cache salt of a key. Who guesses a salt can measure whether a
// prompt of its tenant is cached.
const (
	minSalt = 16
	maxSalt = 256
)

// validName is what the name of a key looks like: it stands in metrics, logs and headers.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@:/+-]{0,63}$`)

// Validate names the first setting of the key that cannot work.
func (k *Key) Validate() error {
	switch {
	case !validName.MatchString(k.Name):
		return fmt.Errorf("name %q: give 1 to 64 letters, digits or any of . _ @ : / + -, the first a letter or digit", clip(k.Name))
	case k.SHA256 == [sha256.Size]byte{}:
		return errors.New("no hash of a key")
	case k.SHA256 == sha256.Sum256(nil):
		return errors.New("the hash is that of an empty key")
	case k.MaxInflight < 0 || k.RequestsPerMinute < 0 || k.TokensPerMinute < 0:
		return errors.New("max_inflight, requests_per_minute and tokens_per_minute must not be negative (0 is no limit)")
	case slices.Contains(k.Models, ""):
		return errors.New("models holds an empty name")
	case k.CacheSalt != "" && (len(k.CacheSalt) < minSalt || len(k.CacheSalt) > maxSalt || !printable(k.CacheSalt)):
		return fmt.Errorf("cache_salt must be %d to %d visible ASCII characters that nobody can guess: openssl rand -hex 16", minSalt, maxSalt)
	}
	return nil
}

// printable tells whether s is visible ASCII.
func printable[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// keyring finds the holder of a key. It does not change.
type keyring map[[sha256.Size]byte]*caller

// caller is the holder of a key. A nil caller is anybody at a front without keys: every
// method lets it do everything.
type caller struct {
	Key
	allowance *allowance // of all that use this name

	requests, promptTokens, outputTokens prometheus.Counter // the name's
}

// name is how the router and the prefiller know the caller.
func (c *caller) name(h *fasthttp.RequestHeader) string {
	if c == nil {
		return tenant(h)
	}
	return c.Name
}

// may tells whether the caller may use a model, by the name it was asked for and the one
// that the name is an alias of.
func (c *caller) may(name, target string) bool {
	return c == nil || len(c.Models) == 0 || slices.Contains(c.Models, name) || slices.Contains(c.Models, target)
}

// priority is the class of a request that asks for one: no more urgent than the key's.
func (c *caller) priority(asked int) int {
	if c == nil {
		return asked
	}
	return max(asked, c.Priority)
}

// newKeyring returns the holders of keys. A tenant that had a key keeps what it has used of
// its limits.
func newKeyring(keys []Key, old keyring) (keyring, error) {
	held := make(map[string]*allowance, len(old))
	for _, c := range old {
		held[c.Name] = c.allowance
	}
	r := make(keyring, len(keys))
	names := make(map[string]bool, len(keys))
	for i := range keys {
		k := keys[i]
		if err := k.Validate(); err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		if names[k.Name] {
			return nil, fmt.Errorf("key %d: the name %q is taken", i+1, k.Name)
		}
		if other := r[k.SHA256]; other != nil {
			return nil, fmt.Errorf("key %d: %q has the key of %q", i+1, k.Name, other.Name)
		}
		names[k.Name] = true
		r[k.SHA256] = &caller{Key: k, allowance: held[k.Name]}
	}
	for _, c := range r { // nothing changes before all is known to be right
		if c.allowance == nil {
			c.allowance = new(allowance)
		}
		c.allowance.set(&c.Key)
	}
	return r, nil
}

// SetAccess replaces the API keys and the certificates; requests and connections that are
// under way go on. On an error nothing has changed. Neither all keys nor TLS can be taken
// away: a file that was emptied by mistake must not open the front to everybody.
func (s *Server) SetAccess(keys []Key, c *tls.Config) error {
	s.access.Lock()
	defer s.access.Unlock()
	if (c == nil) != (s.tls.Load() == nil) {
		return errors.New("tls: turning it on or off needs a restart")
	}
	if err := s.setKeys(keys); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	if c != nil {
		s.tls.Store(c)
	}
	return nil
}

func (s *Server) setKeys(keys []Key) error {
	var old keyring
	if p := s.keys.Load(); p != nil {
		old = *p
	}
	if len(keys) == 0 {
		if old != nil {
			return errors.New("no keys are left, which would let everybody in: restart to run without keys")
		}
		return nil
	}
	ring, err := newKeyring(keys, old)
	if err != nil {
		return err
	}
	named := make(map[string]bool, len(ring))
	for _, c := range ring {
		named[c.Name] = true
		c.requests = s.metrics.keyRequests.WithLabelValues(c.Name)
		c.promptTokens = s.metrics.keyTokens.WithLabelValues(c.Name, "prompt")
		c.outputTokens = s.metrics.keyTokens.WithLabelValues(c.Name, "output")
	}
	s.keys.Store(&ring)
	for _, c := range old {
		if !named[c.Name] {
			s.metrics.forget(c.Name)
		}
	}
	return nil
}

// authenticate returns who sent a request. ok is false where keys are configured and the
// request has none of them.
func (s *Server) authenticate(h *fasthttp.RequestHeader) (c *caller, ok bool) {
	ring := s.keys.Load()
	if ring == nil {
		return nil, true
	}
	key := presented(h)
	if len(key) == 0 {
		return nil, false
	}
	// Keys are found by their hash: how long that takes tells nothing about any key.
	sum := sha256.Sum256(key)
	c = (*ring)[sum]
	return c, c != nil && subtle.ConstantTimeCompare(c.SHA256[:], sum[:]) == 1
}

// The header fields that a key may come in, besides Authorization: those of Azure's and of
// Anthropic's clients.
const (
	headerAPIKey  = "Api-Key"
	headerXAPIKey = "X-Api-Key"
)

// presented returns the key that a request shows, nil for none.
func presented(h *fasthttp.RequestHeader) []byte {
	if auth := h.Peek("Authorization"); len(auth) > 0 {
		const scheme = "bearer "
		if len(auth) < len(scheme) || !bytes.EqualFold(auth[:len(scheme)], []byte(scheme)) {
			return nil
		}
		return bytes.TrimSpace(auth[len(scheme):])
	}
	if key := h.Peek(headerAPIKey); len(key) > 0 {
		return key
	}
	return h.Peek(headerXAPIKey)
}
