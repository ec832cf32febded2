package hub

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// kind says what a failure means for the lookup.
type kind int

const (
	unreachable kind = iota // try again; the cache may stand in
	refused                 // the hub does not give the model to us; the cache may stand in
	invalid                 // not a hub's answer; the cache may stand in
	missing                 // the repository has no such file
	noRevision              // the repository has no such revision
)

// failure is what the hub, or the way to it, has against a request. Its text holds no
// token, no URL with a query and nothing else that a server wrote.
type failure struct {
	kind  kind
	text  string
	wait  time.Duration // what the server asks for before the next try
	cause error
}

func (f *failure) Error() string {
	if f.cause == nil {
		return f.text
	}
	return f.text + ": " + f.cause.Error()
}

func (f *failure) Unwrap() error { return f.cause }

func (f *failure) Is(target error) bool { return target == ErrUnreachable && f.kind == unreachable }

// refused explains a status that is neither success nor a redirect. own says that the
// endpoint sent it and not a file host behind it.
func (h *Hub) refused(s source, revision string, r *reply, resp *http.Response, own bool) error {
	status, code := resp.StatusCode, resp.Header.Get("X-Error-Code")
	switch {
	case !own || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500:
		return &failure{kind: unreachable, wait: retryAfter(resp.Header.Get("Retry-After")),
			text: fmt.Sprintf("%s answers with status %d", resp.Request.URL.Host, status)}
	case code == "GatedRepo":
		return &failure{kind: refused, text: h.gated(s)}
	case code == "RevisionNotFound":
		return &failure{kind: noRevision, text: fmt.Sprintf("the repository has no revision %s: check its branches and tags at %s/%s", quote(revision), h.address(), s.id)}
	case code == "EntryNotFound", status == http.StatusNotFound && code == "" && (r.commit != "" || resp.Request.Method == http.MethodGet):
		// A GET names a commit that is known to exist.
		return &failure{kind: missing, text: "the repository has no such file"}
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound:
		return &failure{kind: refused, text: h.unknown(status)}
	}
	return &failure{kind: refused, text: fmt.Sprintf("%s answers with status %d", h.address(), status)}
}

func (h *Hub) gated(s source) string {
	if h.token == "" {
		return fmt.Sprintf("gated: accept its terms at %s/%s and set HF_TOKEN", h.address(), s.id)
	}
	return fmt.Sprintf("gated, and the token (HF_TOKEN) gives no access: accept its terms at %s/%s with the account of the token", h.address(), s.id)
}

// unknown covers all that the hub does not tell apart for strangers: it answers 401 for
// private models and for those that do not exist.
func (h *Hub) unknown(status int) string {
	if h.token == "" {
		return fmt.Sprintf("not found at %s (status %d): check the id; if the model is private or gated, set HF_TOKEN", h.address(), status)
	}
	return fmt.Sprintf("not found at %s (status %d): check the id, and that the token (HF_TOKEN) is valid and may read the model", h.address(), status)
}

// retryAfter reads seconds or a date; 0 if the header says neither.
func retryAfter(header string) time.Duration {
	if n, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(header); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

func tooLarge(limit int64) error {
	return &failure{kind: invalid, text: fmt.Sprintf("the file has more than %d bytes, which no tokenizer file needs", limit)}
}

// notTheFile is what proxies and login pages cause: status 200 and something else.
func notTheFile(address string) error {
	return &failure{kind: invalid, text: address + " answers with something else than the file, such as a web page: check HF_ENDPOINT and the proxy settings"}
}

// local names the cache in an error of the file system and leaves the hub's alone.
func local(err error) error {
	var f *failure
	if err == nil || errors.As(err, &f) {
		return err
	}
	return fmt.Errorf("write to the cache (HF_HUB_CACHE): %w", err)
}
