package kvwire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Of zmq4 only the protocol is used: greeting, NULL handshake, framing. Its sockets
// are not, for reasons seen in v0.17.0: a closed PUB leaves a goroutine behind, its
// queue has no bound per subscriber, one peer that never greets blocks all accepts,
// Recv ends with EOF in spite of automatic reconnects (field case FC-75), a frame's
// length is allocated before it is read, and a malformed handshake panics. A wire adds
// the bounds; dialling, queues and subscriptions are Subscriber's and Publisher's.

const (
	handshakeTimeout = 5 * time.Second
	frameOverhead    = 64 // bytes that a frame costs beyond its body, against floods of empty ones
	greetingBytes    = 64
)

// keepAlive finds a peer that vanished without a word within half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// wire is one ZMTP connection. One goroutine may read while another writes.
type wire struct {
	conn *zmq4.Conn
	*stream
	stop func() bool // gives up the context's hold on the connection
}

// openWire greets the peer as a socket of type typ. The wire closes with ctx. A message
// of more than limit bytes is an error.
func openWire(ctx context.Context, c net.Conn, typ zmq4.SocketType, server bool, limit int) (w *wire, err error) {
	s := &stream{Conn: c, r: bufio.NewReaderSize(c, 64<<10), limit: limit, greeting: greetingBytes}
	s.mu.w = bufio.NewWriterSize(c, 64<<10)
	w = &wire{stream: s, stop: context.AfterFunc(ctx, func() { c.Close() })}
	peer := c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(peer); err == nil && server {
		peer = host // the port is another one each time
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("ZMTP handshake with %s: malformed: %v", peer, r)
		}
		if err != nil {
			w.close()
			w = nil
		}
	}()
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return w, err
	}
	if w.conn, err = zmq4.Open(s, null.Security(), typ, nil, server, nil); err != nil {
		return w, fmt.Errorf("ZMTP handshake with %s: %w", peer, cause(err))
	}
	s.buffered = true
	return w, c.SetDeadline(time.Time{})
}

// send writes one message; flush makes it leave.
func (w *wire) send(frames ...[]byte) error { return w.conn.SendMsg(zmq4.NewMsgFrom(frames...)) }

// recv reads the next message. Commands mean nothing to ZMTP 3.0 sockets of our kinds.
func (w *wire) recv() ([][]byte, error) {
	for {
		m, err := w.conn.RecvMsg()
		if err != nil {
			return nil, cause(err)
		}
		if m.Type != zmq4.CmdMsg {
			return m.Frames, nil
		}
	}
}

func (w *wire) close() {
	w.stop()
	w.stream.Conn.Close()
}

// stream is the byte stream under a wire. It buffers, and follows the frame headers to
// refuse a message that is too large before zmq4 allocates it.
type stream struct {
	net.Conn
	r        *bufio.Reader
	limit    int
	buffered bool // writes wait for flush; false during the handshake

	greeting int    // bytes of the greeting still to come
	header   []byte // the part of a frame header read so far
	array    [9]byte
	body     uint64 // bytes of the frame's body still to come
	more     bool   // the message has another frame
	message  uint64 // bytes of the message so far

	mu struct {
		sync.Mutex // a reader may answer a ping while another goroutine sends
		w          *bufio.Writer
	}
}

// cause returns why a connection ended in words that do not name its ports, so that
// equal reasons read equal.
func cause(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errClosed
	}
	return err
}

var errClosed = errors.New("the peer closed the connection")

var errTooLarge = errors.New("message is too large")

func (s *stream) Read(p []byte) (n int, err error) {
	switch {
	case s.greeting > 0:
		n, err = s.r.Read(p[:min(len(p), s.greeting)])
		s.greeting -= n
	case s.body > 0:
		n, err = s.r.Read(p[:min(uint64(len(p)), s.body)])
		s.body -= uint64(n)
	default:
		want := 2
		if len(s.header) >= 2 {
			want = len(s.array)
		}
		n, err = s.r.Read(p[:min(len(p), want-len(s.header))])
		s.header = append(s.array[:len(s.header)], p[:n]...)
		if e := s.frame(); e != nil {
			return 0, e
		}
	}
	if s.body == 0 && len(s.header) == 0 && !s.more {
		s.message = 0
	}
	return n, err
}

// frame takes a header that is complete.
func (s *stream) frame() error {
	const more, long = 1, 2
	if len(s.header) < 2 || s.header[0]&long != 0 && len(s.header) < len(s.array) {
		return nil
	}
	s.body = uint64(s.header[1])
	if s.header[0]&long != 0 {
		s.body = binary.BigEndian.Uint64(s.header[1:])
	}
	s.more = s.header[0]&more != 0
	s.header = s.header[:0]
	if s.body > uint64(s.limit) || s.message+s.body+frameOverhead > uint64(s.limit)+8*frameOverhead {
		return fmt.Errorf("%w: a frame of %d bytes from %s, messages may have %d", errTooLarge, s.body, s.RemoteAddr(), s.limit)
	}
	s.message += s.body + frameOverhead
	return nil
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.mu.w.Write(p)
	if err == nil && !s.buffered {
		err = s.mu.w.Flush()
	}
	return n, err
}

func (s *stream) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.w.Flush()
}

// endpoint splits tcp://host:port or ipc://path for package net.
func endpoint(s string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(s, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}
	if addr, ok := strings.CutPrefix(s, "tcp://"); ok {
		host, port, err := net.SplitHostPort(addr)
		if err == nil && port != "" {
			if host == "*" {
				host = ""
			}
			return "tcp", net.JoinHostPort(host, port), nil
		}
	}
	return "", "", fmt.Errorf("ZMQ endpoint %q: want tcp://host:port or ipc://path", s)
}

func dial(ctx context.Context, ep string) (net.Conn, error) {
	network, addr, err := endpoint(ep)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: handshakeTimeout, KeepAliveConfig: keepAlive}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", ep, err)
	}
	return c, nil
}

// listen binds ep and returns it with the real port, and with a host that can be
// dialled from this machine where ep has a wildcard.
func listen(ep string) (l net.Listener, bound string, err error) {
	network, addr, err := endpoint(ep)
	if err != nil {
		return nil, "", err
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	if l, err = lc.Listen(context.Background(), network, addr); err != nil && network == "unix" {
		// The file of a process that died stays behind; a living one answers.
		if c, e := net.Dial(network, addr); e == nil {
			c.Close()
		} else if os.Remove(addr) == nil {
			l, err = lc.Listen(context.Background(), network, addr)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w", ep, err)
	}
	if network == "unix" {
		return l, ep, nil
	}
	host, _, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return l, "tcp://" + net.JoinHostPort(host, port), nil
}

// pause waits for d or ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// accept gives each connection of l to f until ctx ends, which closes l.
func accept(ctx context.Context, l net.Listener, f func(net.Conn)) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			f(c)
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			pause(ctx, 100*time.Millisecond) // out of file descriptors, most likely
		}
	}
}

var _ io.ReadWriter = (*stream)(nil)
