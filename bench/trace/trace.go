package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// DefaultBlockTokens is the number of tokens that one hash id stands for.
const DefaultBlockTokens = 512

// maxLine bounds one line: a prompt of half a billion tokens.
const maxLine = 32 << 20

// Request is one row of a trace.
type Request struct {
	Line    int           // in the file, from 1
	Time    time.Duration // since the start of the trace; meaningful with HasTime
	HasTime bool
	// Delay is the time between the end of the session's last turn and this one;
	// meaningful with HasDelay. A turn with neither a delay nor a time does not exist.
	Delay        time.Duration
	HasDelay     bool
	InputTokens  int // at most what the hash ids stand for
	OutputTokens int
	HashIDs      []uint64
	Session      string // "" is a request on its own
}

// Reader reads a trace row by row.
type Reader struct {
	// Clamped counts rows whose input_length was more than their hash ids stand for.
	Clamped int

	blockTokens int
	src         *bufio.Reader
	lines       *bufio.Scanner
	line        int
	row         row
	sessions    map[string]struct{}
}

// NewReader returns a reader of r, which may be gzip. blockTokens is the tokens of one
// hash id; 0 is DefaultBlockTokens.
func NewReader(r io.Reader, blockTokens int) *Reader {
	if blockTokens <= 0 {
		blockTokens = DefaultBlockTokens
	}
	return &Reader{blockTokens: blockTokens, src: bufio.NewReader(r), sessions: make(map[string]struct{})}
}

// ReadAll reads the whole of r.
func ReadAll(r io.Reader, blockTokens int) ([]Request, error) {
	var all []Request
	for rd := NewReader(r, blockTokens); ; {
		var req Request
		switch err := rd.Read(&req); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		req.HashIDs = slices.Clip(req.HashIDs)
		all = append(all, req)
	}
}

// row is a line as it is written. Pointers tell absent from zero.
type row struct {
	Timestamp    *float64        `json:"timestamp"`
	CreatedTime  *float64        `json:"created_time"`
	InputLength  *int            `json:"input_length"`
	OutputLength *int            `json:"output_length"`
	HashIDs      []uint64        `json:"hash_ids"`
	SessionID    json.RawMessage `json:"session_id"`
	Delay        *float64        `json:"delay"`
	DelayMS      *float64        `json:"delay_ms"`
}

// Read reads the next row into req, whose HashIDs memory it uses again, and returns
// io.EOF after the last. Any other error names the line.
func (r *Reader) Read(req *Request) error {
	if r.lines == nil {
		if err := r.open(); err != nil {
			return err
		}
	}
	for r.lines.Scan() {
		r.line++
		text := bytes.TrimSpace(r.lines.Bytes())
		if len(text) == 0 {
			continue
		}
		r.row = row{HashIDs: req.HashIDs[:0], SessionID: r.row.SessionID[:0]}
		if err := json.Unmarshal(text, &r.row); err != nil {
			return fmt.Errorf("line %d: %w", r.line, readable(err))
		}
		if err := r.fill(req); err != nil {
			return fmt.Errorf("line %d: %w", r.line, err)
		}
		return nil
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("line %d: longer than %d MiB", r.line+1, maxLine>>20)
	case err != nil:
		return fmt.Errorf("line %d: %w", r.line+1, err)
	}
	return io.EOF
}

func (r *Reader) open() error {
	var src io.Reader = r.src
	if head, _ := r.src.Peek(2); string(head) == "\x1f\x8b" {
		z, err := gzip.NewReader(r.src)
		if err != nil {
			return fmt.Errorf("read gzip: %w", err)
		}
		src = z
	}
	r.lines = bufio.NewScanner(src)
	r.lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return nil
}

// readable rewrites the words of encoding/json for people who see only the file.
func readable(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	want := map[string]string{
		"timestamp": "milliseconds", "created_time": "milliseconds", "delay": "milliseconds", "delay_ms": "milliseconds",
		"input_length": "a whole number of tokens", "output_length": "a whole number of tokens",
		"hash_ids": "an array of whole numbers from 0 to 18446744073709551615",
	}[wrong.Field]
	if want == "" {
		return fmt.Errorf("expected a JSON object, got %s", wrong.Value)
	}
	return fmt.Errorf("%s: expected %s, got %s", wrong.Field, want, wrong.Value)
}

// fill checks the row and moves it into req.
func (r *Reader) fill(req *Request) error {
	in := &r.row
	session, err := sessionName(in.SessionID)
	if err != nil {
		return err
	}
	at, hasTime, err := millis("timestamp", in.Timestamp, "created_time", in.CreatedTime)
	if err != nil {
		return err
	}
	delay, hasDelay, err := millis("delay", in.Delay, "delay_ms", in.DelayMS)
	if err != nil {
		return err
	}
	_, later := r.sessions[session]
	switch {
	case in.HashIDs == nil:
		return errors.New("hash_ids: missing")
	case len(in.HashIDs) == 0:
		return errors.New("hash_ids: expected at least one id")
	case in.OutputLength == nil:
		return errors.New("output_length: missing")
	case *in.OutputLength < 0:
		return fmt.Errorf("output_length: expected no less than 0, got %d", *in.OutputLength)
	case in.InputLength != nil && *in.InputLength < 1:
		return fmt.Errorf("input_length: expected no less than 1, got %d", *in.InputLength)
	case hasDelay && session == "":
		return errors.New("delay: needs a session_id: it is the time since the session's last turn")
	case hasDelay && !later:
		return fmt.Errorf("delay: session %q has no turn before this one", session)
	case !hasTime && !hasDelay:
		return errors.New("timestamp: missing; send it, or a delay on a session's later turn")
	}
	if session != "" {
		r.sessions[session] = struct{}{}
	}
	tokens := len(in.HashIDs) * r.blockTokens
	if n := in.InputLength; n != nil {
		if *n > tokens {
			r.Clamped++
		}
		tokens = min(tokens, *n)
	}
	*req = Request{
		Line: r.line, Time: at, HasTime: hasTime, Delay: delay, HasDelay: hasDelay, InputTokens: tokens,
		OutputTokens: *in.OutputLength, HashIDs: in.HashIDs, Session: session,
	}
	return nil
}

// sessionName takes a string or a number.
func sessionName(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	switch raw[0] {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case '{', '[', 't', 'f':
		return "", errors.New("session_id: expected a string or a number")
	}
	return string(raw), nil
}

// millis reads a time that has two names.
func millis(name string, v *float64, alias string, w *float64) (d time.Duration, ok bool, err error) {
	if v != nil && w != nil {
		return 0, false, fmt.Errorf("%s and %s are the same field; send one", name, alias)
	}
	if v == nil {
		v, name = w, alias
	}
	if v == nil {
		return 0, false, nil
	}
	ns := *v * float64(time.Millisecond)
	if ns < 0 || ns > math.MaxInt64/2 {
		return 0, false, fmt.Errorf("%s: expected milliseconds from 0 to %.0f, got %v", name, math.MaxInt64/2/float64(time.Millisecond), *v)
	}
	return time.Duration(math.Round(ns)), true, nil
}

// appendTokens appends length token ids that share prefixes exactly as ids do: ids[k]
// becomes blockTokens tokens, the last block as many as are left.
//
// An id below 1<<32 is repeated, as NVIDIA Dynamo's replay does, so block hashes of the
// two interchange. A larger one alternates its low half with low xor high: as high is
// not 0 the two differ, so no such block equals that of a smaller id, and any two
// tokens in a row hold all 64 bits.
func appendTokens(dst []uint32, ids []uint64, blockTokens, length int) []uint32 {
	dst = slices.Grow(dst, min(length, len(ids)*blockTokens))
	for _, id := range ids {
		n := min(blockTokens, length)
		if n <= 0 {
			break
		}
		low, odd := uint32(id), uint32(id)^uint32(id>>32)
		for i := range n {
			if i&1 == 0 {
				dst = append(dst, low)
			} else {
				dst = append(dst, odd)
			}
		}
		length -= n
	}
	return dst
}

// Tokens appends the prompt of the request, with blockTokens tokens for each hash id.
func (q *Request) Tokens(dst []uint32, blockTokens int) []uint32 {
	return appendTokens(dst, q.HashIDs, blockTokens, q.InputTokens)
}
