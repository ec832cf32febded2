package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// errMalformedBody says that a worker's chunked framing is broken.
var errMalformedBody = errors.New("malformed chunked body")

// The framings of a response body.
const (
	framingNone   = iota // no body
	framingLength        // Content-Length
	framingChunked
	framingClose // until the worker closes the connection
)

// body reads a response body from a connection's buffer. One Read returns everything
// that has arrived, over any number of chunks, and blocks only while nothing has: a burst
// of events costs one write to the client and no event waits for the next.
type body struct {
	br      *bufio.Reader
	framing int
	left    int64 // bytes of the body, or of the current chunk, that are not read yet
	tail    bool  // the current chunk's CRLF is still to come
	done    bool  // the end of the body was seen
}

func (b *body) reset(br *bufio.Reader, framing int, length int64) {
	*b = body{br: br, framing: framing, left: length}
	b.done = framing == framingNone || framing == framingLength && length == 0
}

// Read implements io.Reader. It returns io.EOF only at the end that the framing states.
func (b *body) Read(p []byte) (n int, err error) {
	if b.done {
		return 0, io.EOF
	}
	for n < len(p) {
		if b.framing == framingChunked && b.left == 0 {
			if n > 0 && !b.lineBuffered() {
				return n, nil
			}
			if err := b.nextChunk(); err != nil || b.done {
				if err == nil {
					err = io.EOF
				}
				return n, err
			}
		}
		if n > 0 && b.br.Buffered() == 0 {
			return n, nil
		}
		q := p[n:]
		if b.framing != framingClose && int64(len(q)) > b.left {
			q = q[:b.left]
		}
		m, err := b.br.Read(q)
		n += m
		if b.framing != framingClose {
			b.left -= int64(m)
		}
		if err != nil {
			if err == io.EOF {
				if b.framing == framingClose {
					b.done = true
					return n, io.EOF
				}
				err = io.ErrUnexpectedEOF
			}
			return n, err
		}
		if b.framing == framingLength && b.left == 0 {
			b.done = true
			return n, io.EOF
		}
		b.tail = b.framing == framingChunked && b.left == 0
	}
	return n, nil
}

// lineBuffered tells whether the next chunk begins in the buffer, so that reading its size
// does not wait. A size that starts with 0 may be the end, which trailers follow: that is
// left to a Read of its own.
func (b *body) lineBuffered() bool {
	buf, _ := b.br.Peek(b.br.Buffered())
	if b.tail {
		i := bytes.IndexByte(buf, '\n')
		if i < 0 {
			return false
		}
		buf = buf[i+1:]
	}
	return len(buf) > 0 && buf[0] != '0' && bytes.IndexByte(buf, '\n') >= 0
}

// nextChunk reads the line before the next chunk and, after the last one, the trailers.
func (b *body) nextChunk() error {
	if b.tail {
		line, err := b.line()
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return errMalformedBody
		}
		b.tail = false
	}
	line, err := b.line()
	if err != nil {
		return err
	}
	size, ok := parseChunkSize(line)
	if !ok {
		return errMalformedBody
	}
	if size > 0 {
		b.left = size
		return nil
	}
	for range 64 { // trailers are dropped: no LLM server uses them
		line, err := b.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			b.done = true
			return nil
		}
	}
	return errMalformedBody
}

// line reads one line without its CRLF; it is valid until the next read.
func (b *body) line() ([]byte, error) {
	line, err := b.br.ReadSlice('\n')
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		} else if err == bufio.ErrBufferFull {
			err = errMalformedBody
		}
		return nil, err
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// parseChunkSize reads the hexadecimal size before an optional extension.
func parseChunkSize(line []byte) (size int64, ok bool) {
	for i, c := range line {
		var d byte
		switch {
		case c >= '0' && c <= '9':
			d = c - '0'
		case c >= 'a' && c <= 'f':
			d = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			d = c - 'A' + 10
		case c == ';' || c == ' ' || c == '\t':
			return size, i > 0
		default:
			return 0, false
		}
		if i >= 15 {
			return 0, false
		}
		size = size<<4 | int64(d)
	}
	return size, len(line) > 0
}
