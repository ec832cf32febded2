package kvwire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// queue holds messages between one goroutine that reads a socket and one that works,
// bounded by count and bytes.
type queue struct {
	maxItems, maxBytes int

	mu struct {
		sync.Mutex
		items []queued // from head on
		head  int
		bytes int
		err   error // why nothing more will come
	}
	ready, space chan struct{} // hold a token when there is something to look at
}

type queued struct {
	Message
	due time.Time // not to be sent before; zero = at once
}

var errIdle = errors.New("nothing came in time")

func newQueue(maxItems, maxBytes int) *queue {
	return &queue{maxItems: maxItems, maxBytes: maxBytes, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// offer adds m unless the queue is full.
func (q *queue) offer(m queued) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.mu.items) - q.mu.head
	if n > 0 && (n >= q.maxItems || q.mu.bytes+len(m.Payload) > q.maxBytes) {
		return false
	}
	if q.mu.head > 0 && len(q.mu.items) == cap(q.mu.items) {
		n := copy(q.mu.items, q.mu.items[q.mu.head:])
		clear(q.mu.items[n:])
		q.mu.items, q.mu.head = q.mu.items[:n], 0
	}
	q.mu.items = append(q.mu.items, m)
	q.mu.bytes += len(m.Payload)
	signal(q.ready)
	return true
}

// push adds m, waiting for space.
func (q *queue) push(ctx context.Context, m Message) error {
	for !q.offer(queued{Message: m}) {
		select {
		case <-q.space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// close tells the reader that err ended the source, once the queue is empty.
func (q *queue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.err = err
	signal(q.ready)
}

// take removes the first message; ok is false when there is none yet.
func (q *queue) take() (m queued, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.head == len(q.mu.items) {
		return queued{}, false, q.mu.err
	}
	m = q.mu.items[q.mu.head]
	q.mu.items[q.mu.head] = queued{}
	q.mu.head++
	q.mu.bytes -= len(m.Payload)
	if q.mu.head == len(q.mu.items) {
		q.mu.items, q.mu.head = q.mu.items[:0], 0
	}
	signal(q.space)
	return m, true, nil
}

// pop waits for the first message. With idle > 0 it gives up after that silence.
func (q *queue) pop(ctx context.Context, idle time.Duration) (queued, error) {
	var timeout <-chan time.Time
	for {
		m, ok, err := q.take()
		if ok || err != nil {
			return m, err
		}
		if idle > 0 && timeout == nil {
			t := time.NewTimer(idle)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-q.ready:
		case <-timeout:
			return queued{}, errIdle
		case <-ctx.Done():
			return queued{}, ctx.Err()
		}
	}
}
