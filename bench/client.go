package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	goopenai "github.com/sashabaranov/go-openai"

	"github.com/warmroute/warmroute/internal/openai"
)

// client sends the turns of one run.
type client struct {
	cfg    *Config
	api    *goopenai.Client
	fields []field
	now    func() time.Time
	own    *http.Transport // to be closed, nil where the caller gave one
}

func newClient(cfg *Config) (*client, error) {
	fields, err := cfg.fields()
	if err != nil {
		return nil, err
	}
	c := &client{cfg: cfg, fields: fields, now: cfg.now()}
	transport := cfg.Transport
	if transport == nil {
		c.own = newTransport(cfg.Users)
		transport = c.own
	}
	conf := goopenai.DefaultConfig(cfg.APIKey)
	conf.BaseURL = cfg.base()
	conf.HTTPClient = &doer{client: &http.Client{Transport: transport}, header: cfg.Header, now: c.now}
	c.api = goopenai.NewClientWithConfig(conf)
	return c, nil
}

// newTransport keeps one connection a user. Idle ones are closed before the engine does
// it (vLLM after 5 s): a request that meets a closing connection fails, and a POST may
// not be sent twice.
func newTransport(users int) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, users
	t.IdleConnTimeout = 4 * time.Second
	t.DisableCompression = true
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true) // a stream a connection: no head-of-line blocking between users
	return t
}

func (c *client) close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// model returns the configured model, or the only one that the endpoint serves.
func (c *client) model(ctx context.Context) (string, error) {
	if c.cfg.Model != "" {
		return c.cfg.Model, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	list, err := c.api.ListModels(ctx)
	if err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return "", fmt.Errorf("%s/models: %w (is the endpoint up? --model skips this question)", c.cfg.base(), apiError(err))
		}
		return "", ctx.Err()
	}
	var names []string
	for _, m := range list.Models {
		if m.Parent == "" { // an adapter is no second base model
			names = append(names, m.ID)
		}
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("%s/models lists no model: pass --model", c.cfg.base())
	case 1:
		return names[0], nil
	}
	slices.Sort(names)
	return "", fmt.Errorf("%s/models lists %d models: pass --model with one of %s", c.cfg.base(), len(names), strings.Join(names[:min(len(names), 10)], ", "))
}

// exchange is one request and the instants of its life. It travels to the doer in the
// request's context, because go-openai has no other way to it.
type exchange struct {
	fields  []field
	header  http.Header
	start   time.Time // before the write
	headers time.Time // response headers are there
	body    io.ReadCloser
	resp    *http.Response
}

type exchangeKey struct{}

// doer is go-openai's HTTP client: it adds what go-openai cannot say, stamps the
// instants and lets the raw body be read.
type doer struct {
	client *http.Client
	header http.Header
	now    func() time.Time
}

func (d *doer) Do(req *http.Request) (*http.Response, error) {
	for name, values := range d.header {
		req.Header[name] = values
	}
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		return d.client.Do(req)
	}
	for name, values := range x.header {
		req.Header[name] = values
	}
	if err := splice(req, x.fields); err != nil {
		return nil, err
	}
	x.start = d.now()
	resp, err := d.client.Do(req)
	x.headers = d.now()
	if err == nil {
		x.resp, x.body = resp, resp.Body
	}
	return resp, err
}

// splice replaces, adds and removes fields of the request's body.
func splice(req *http.Request, fields []field) error {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return err
	}
	body = edit(body, fields)
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.ContentLength = int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return nil
}

func edit(body []byte, fields []field) []byte {
	// An answer without visible text is echoed as an empty one; go-openai leaves empty
	// content out, which chat templates trip over. No string can hold these quotes.
	body = bytes.ReplaceAll(body, []byte(`{"role":"assistant"}`), []byte(`{"role":"assistant","content":""}`))
	var r openai.Reader
	r.Reset(body, openai.Span{Start: 0, End: len(body)})
	out := append(make([]byte, 0, len(body)+256), '{')
	add := func(name string, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(openai.AppendString(out, name), ':'), value...)
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		value := r.Skip().Of(body)
		if !slices.ContainsFunc(fields, func(f field) bool { return f.name == name }) {
			add(name, value)
		}
	}
	for _, f := range fields {
		if f.value != nil {
			add(f.name, f.value)
		}
	}
	return append(out, '}')
}

// apiError shortens go-openai's errors to what the endpoint said.
func apiError(err error) error {
	var api *goopenai.APIError
	if errors.As(err, &api) && api.HTTPStatusCode > 0 {
		return &statusError{api.HTTPStatusCode, api.Message}
	}
	var req *goopenai.RequestError
	if errors.As(err, &req) && req.HTTPStatusCode > 0 {
		return &statusError{req.HTTPStatusCode, string(req.Body)}
	}
	return err
}

// statusError is an HTTP error answer.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("HTTP %d: %s", e.code, short(e.message))
}

// short bounds a message of the endpoint to one line.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
