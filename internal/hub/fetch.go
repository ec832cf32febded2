package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxFile   = 256 << 20 // bytes; the largest tokenizer.json seen, Gemma 3's, has 33 MB
	maxSmall  = 64 << 20  // bytes of every other file; the largest seen has 1.2 MB
	maxHops   = 10
	tries     = 3
	firstWait = 500 * time.Millisecond // doubles with every try
	maxWait   = time.Minute            // a hub that wants more patience counts as unreachable
	headStall = 10 * time.Second       // as huggingface_hub
	bodyStall = 30 * time.Second       // without a single byte
)

var errStalled = errors.New("no data for too long")

// reply is what the responses along a chain of redirects say together.
type reply struct {
	commit string
	etag   string // a safe file name
	sha256 bool   // etag is the hash of the content
	size   int64  // bytes, -1 if not known
	body   io.ReadCloser
	reused bool // the blob was there: no body
	page   bool // the body is not the file: a web page, or compressed
}

// head asks which commit a revision stands for and whether it has a file. Errors of kind
// missing come with the commit, if the hub said it.
func (h *Hub) head(ctx context.Context, s source, revision, name string, attempts int) (commit string, err error) {
	err = retry(ctx, attempts, func() error {
		w := newWatch(ctx, headStall)
		defer w.stop()
		known := func(r *reply) bool { return r.commit != "" }
		r, err := h.follow(w, http.MethodHead, s, revision, name, known)
		if commit = r.commit; err != nil {
			return h.noteMissing(s, revision, name, r, err)
		}
		if r.body != nil {
			r.body.Close()
		}
		if !isCommit(commit) || isCommit(revision) && commit != revision {
			return &failure{kind: invalid, text: fmt.Sprintf("%s does not answer as a Hugging Face hub (no usable X-Repo-Commit header): check HF_ENDPOINT and the proxy settings", h.address())}
		}
		return nil
	})
	return commit, err
}

// get stores one file of a commit and links it into the snapshot.
func (h *Hub) get(ctx context.Context, s source, commit, name string) error {
	limit := h.maxFile
	if name != required {
		limit = min(limit, maxSmall)
	}
	return retry(ctx, tries, func() error {
		w := newWatch(ctx, bodyStall)
		defer w.stop()
		stored := func(r *reply) bool { return r.etag != "" && s.repo.hasBlob(r.etag, r.size) }
		r, err := h.follow(w, http.MethodGet, s, commit, name, stored)
		if err != nil {
			return h.noteMissing(s, commit, name, r, err)
		}
		if r.body != nil {
			defer r.body.Close()
		}
		switch {
		case r.commit != "" && r.commit != commit:
			return &failure{kind: invalid, text: fmt.Sprintf("%s answers for commit %s", h.address(), quote(r.commit))}
		case r.etag == "":
			return &failure{kind: invalid, text: fmt.Sprintf("%s sends no usable ETag header: check HF_ENDPOINT and the proxy settings", h.address())}
		case r.page && !r.reused:
			return notTheFile(h.address())
		case r.size > limit:
			return tooLarge(limit)
		}
		if !r.reused {
			err := writeFile(s.repo.blob(r.etag), func(dst io.Writer) error {
				var e edges
				err := save(io.MultiWriter(dst, &e), r, w, limit)
				if err == nil && strings.HasSuffix(name, ".json") && !e.object() {
					err = notTheFile(h.address())
				}
				return err
			})
			if err != nil {
				return local(err)
			}
		}
		return local(s.repo.link(r.etag, commit, name))
	})
}

// noteMissing remembers a file that the repository does not have, as far as the cache lets
// it: the same question costs the next caller one request.
func (h *Hub) noteMissing(s source, revision, name string, r *reply, err error) error {
	var f *failure
	if errors.As(err, &f) && f.kind == missing && isCommit(r.commit) && (r.commit == revision || !isCommit(revision)) {
		_ = s.repo.setAbsent(r.commit, name)
	}
	return err
}

// follow sends a request and follows redirects until stop is content or no redirect is
// left. Every hop gets the headers that its host may see. The reply is never nil.
func (h *Hub) follow(w *watch, method string, s source, revision, name string, stop func(*reply) bool) (*reply, error) {
	r := &reply{size: -1}
	u := *h.endpoint
	u.Path += "/" + s.id + "/resolve/" + revision + "/" + name
	u.RawPath = h.endpoint.EscapedPath() + "/" + s.id + "/resolve/" + url.PathEscape(revision) + "/" + name
	at := &u
	for range maxHops {
		resp, err := h.send(w.ctx, method, at)
		if err != nil {
			return r, &failure{kind: unreachable, text: "no answer from " + at.Host, cause: w.cause(err)}
		}
		r.note(resp)
		if resp.StatusCode == http.StatusOK {
			r.body, r.reused = resp.Body, stop(r)
			return r, nil
		}
		// A body read to its end leaves the connection usable.
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		resp.Body.Close()
		if !isRedirect(resp.StatusCode) {
			return r, h.refused(s, revision, r, resp, h.trusted(at))
		}
		if stop(r) {
			r.reused = true
			return r, nil
		}
		next, err := at.Parse(resp.Header.Get(redirectHeader))
		if err != nil || next.Host == "" || next.Scheme != "https" && (next.Scheme != "http" || at.Scheme == "https") {
			return r, &failure{kind: invalid, text: at.Host + " redirects to an unusable address"}
		}
		at = next
	}
	return r, &failure{kind: invalid, text: h.address() + " redirects too often"}
}

// redirectHeader is the Location header under a name that http.Client does not know: it
// follows Location, and quotes one that it cannot parse, signature and all, in its error.
const redirectHeader = "Warmroute-Location"

// unredirected renames Location in every response.
type unredirected struct{ http.RoundTripper }

func (t unredirected) RoundTrip(req *http.Request) (*http.Response, error) {
	next := t.RoundTripper
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(req)
	if err == nil {
		resp.Header.Set(redirectHeader, resp.Header.Get("Location"))
		resp.Header.Del("Location")
	}
	return resp, err
}

// CloseIdleConnections is what http.Client looks for in its transport.
func (t unredirected) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

func (h *Hub) send(ctx context.Context, method string, u *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, errors.New("the address is not usable")
	}
	req.Header.Set("User-Agent", "warmroute")
	// A compressed body has another length and may have another ETag.
	req.Header.Set("Accept-Encoding", "identity")
	if h.token != "" && h.trusted(u) {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	resp, err := h.client.Do(req)
	// The URL of a file host is signed: whoever reads it in an error can use it.
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		err = ue.Err
	}
	return resp, err
}

// trusted reports whether a URL may see the token.
func (h *Hub) trusted(u *url.URL) bool {
	origin := u.Scheme + "://" + u.Host
	return origin == defaultEndpoint || origin == h.endpoint.Scheme+"://"+h.endpoint.Host
}

// address is the endpoint as errors show it, without any user and password.
func (h *Hub) address() string {
	u := *h.endpoint
	u.User = nil
	return u.String()
}

// note takes in one response. The first one that tells a thing decides: later hosts see a
// file, not a repository.
func (r *reply) note(resp *http.Response) {
	head := resp.Header
	if r.commit == "" {
		r.commit = head.Get("X-Repo-Commit")
	}
	if r.etag == "" {
		linked := fileETag(head.Get("X-Linked-Etag"))
		r.etag, r.sha256 = linked, isHex(linked, 64)
		if n, err := strconv.ParseInt(head.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
			r.size = n
		}
	}
	if resp.StatusCode == http.StatusOK {
		kind, _, _ := mime.ParseMediaType(head.Get("Content-Type"))
		coding := head.Get("Content-Encoding")
		r.page = kind == "text/html" || coding != "" && coding != "identity"
		if r.etag == "" {
			r.etag = fileETag(head.Get("Etag"))
		}
		if r.size < 0 {
			r.size = resp.ContentLength
		}
	}
}

// fileETag returns the name that a content has in blobs, "" if the header cannot be one.
func fileETag(header string) string {
	etag := strings.Trim(strings.TrimPrefix(header, "W/"), `"`)
	if etag == "" || len(etag) > 128 || etag[0] == '.' || !plain(etag, "-_.") {
		return ""
	}
	return etag
}

// save copies a body of the expected length and content and at most limit bytes.
func save(dst io.Writer, r *reply, w *watch, limit int64) error {
	sum := sha256.New()
	buf := make([]byte, 64<<10)
	var n int64
	for {
		k, err := r.body.Read(buf)
		w.alive()
		switch n += int64(k); {
		case n > limit:
			return tooLarge(limit)
		case r.size >= 0 && n > r.size:
			return &failure{kind: unreachable, text: fmt.Sprintf("the download has more than %d bytes", r.size)}
		}
		sum.Write(buf[:k])
		if _, err := dst.Write(buf[:k]); err != nil {
			return err
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return &failure{kind: unreachable, text: "the download broke off", cause: w.cause(err)}
		}
	}
	if r.size >= 0 && n != r.size {
		return &failure{kind: unreachable, text: fmt.Sprintf("the download has %d of %d bytes", n, r.size)}
	}
	if r.sha256 && hex.EncodeToString(sum.Sum(nil)) != r.etag {
		return &failure{kind: unreachable, text: "the download does not have the content that its hash promises"}
	}
	return nil
}

// edges are the first and the last byte of a text that are not white space. They tell a JSON
// object from a web page and from one that is cut; a whole check would refuse the Infinity
// that Python writes into some config.json.
type edges struct{ first, last byte }

func (e *edges) Write(p []byte) (int, error) {
	if text := bytes.TrimSpace(p); len(text) > 0 {
		if e.first == 0 {
			e.first = text[0]
		}
		e.last = text[len(text)-1]
	}
	return len(p), nil
}

func (e *edges) object() bool { return e.first == '{' && e.last == '}' }

// watch cancels a request on which nothing moves, whatever client sends it.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
}

func newWatch(ctx context.Context, limit time.Duration) *watch {
	w := &watch{limit: limit}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(limit, func() { w.cancel(errStalled) })
	return w
}

func (w *watch) alive() { w.timer.Reset(w.limit) }

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// cause prefers the reason of a cancelled request to the error it ended with.
func (w *watch) cause(err error) error {
	if c := context.Cause(w.ctx); c != nil {
		return c
	}
	return err
}

// retry repeats an attempt that ended in an unreachable hub.
func retry(ctx context.Context, attempts int, attempt func() error) error {
	wait := firstWait
	for n := 1; ; n++ {
		err := attempt()
		var f *failure
		if !errors.As(err, &f) || f.kind != unreachable || n >= attempts || ctx.Err() != nil {
			return err
		}
		pause := max(wait, f.wait)
		wait *= 2
		if deadline, ok := ctx.Deadline(); pause > maxWait || ok && time.Until(deadline) < pause {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
}
