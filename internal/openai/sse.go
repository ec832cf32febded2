package openai

import "bytes"

// DefaultEventLimit is the largest data of one event that is parsed. A stream with
// larger events passes through all the same; they are counted and not looked at.
const DefaultEventLimit = 4 << 20

// Event is one SSE event that carries data.
//
// The ranges [Start, End) of a stream's events do not overlap and do not depend on
// the chunks, and leaving one out leaves a well-formed stream of the others. The LF of a
// CRLF that completes an event lies in no range.
type Event struct {
	Data     []byte // the data lines, joined by newlines; valid until the next call
	Start    int64  // offset in the stream of its first byte
	End      int64  // offset behind the line end that completed it
	Error    bool   // named "error", or sent in a field of that name
	Oversize bool   // Data is beyond the limit and left out
}

// Scanner cuts a stream into SSE events, whatever the chunks it arrives in:
//
//	s.Feed(chunk)
//	for ev, ok := s.Next(); ok; ev, ok = s.Next() {…}
//
// and at the end of the stream Close. An event that lies whole in a chunk is not
// copied; one that does not is collected in a buffer of at most Limit bytes. The zero
// value is ready. Lines end in LF, CR or CRLF; a byte order mark, comments, events
// without data and unknown fields are passed over.
type Scanner struct {
	Limit int // bytes of one event's data; 0 is DefaultEventLimit
	// Oversize counts the events beyond Limit.
	Oversize int

	chunk  []byte
	pos    int
	nl, cr int   // index of the next LF and CR of the chunk at or behind pos; len(chunk) for none
	base   int64 // offset in the stream of chunk[0]
	skipLF bool  // the last line ended in CR: an LF that follows belongs to it

	line []byte // beginning of a line that earlier chunks did not finish
	long bool   // line is cut: it is beyond what an event may hold

	ev     Event
	block  bool   // some field of the current event was seen
	data   bool   // a data field was seen
	joined []byte // data that is not one piece of the chunk
	copied bool   // ev.Data is joined
	start  int64
}

// Reset prepares the scanner for another stream and keeps its memory, except what a
// rare large event left.
func (s *Scanner) Reset() {
	const keep = 64 << 10
	line, joined := s.line[:0], s.joined[:0]
	if cap(line) > keep {
		line = nil
	}
	if cap(joined) > keep {
		joined = nil
	}
	*s = Scanner{Limit: s.Limit, line: line, joined: joined}
}

// Feed gives the next bytes of the stream. They must stay unchanged until Next has
// returned false.
func (s *Scanner) Feed(chunk []byte) {
	s.base += int64(len(s.chunk))
	s.chunk, s.pos = chunk, 0
	s.nl, s.cr = -1, -1
}

// Settled returns the offset up to which the stream holds whole events: bytes behind
// it may belong to an event that is not complete yet.
func (s *Scanner) Settled() int64 { return s.start }

// Next returns the next event that the chunk completes; false asks for more bytes.
func (s *Scanner) Next() (Event, bool) {
	for s.pos < len(s.chunk) {
		if s.skipLF {
			s.skipLF = false
			if s.chunk[s.pos] == '\n' {
				s.pos++
				if !s.block { // it is no part of the event to come
					s.start = s.base + int64(s.pos)
				}
				continue
			}
		}
		end, next := s.lineEnd()
		if end < 0 {
			s.keepLine()
			break
		}
		line := s.chunk[s.pos:end]
		inChunk := len(s.line) == 0 && !s.long
		if !inChunk {
			s.appendLine(line)
			line = s.line
		}
		s.skipLF = s.chunk[end] == '\r'
		s.pos = next
		blank := s.take(line, inChunk)
		s.line, s.long = s.line[:0], false
		if !blank {
			if !s.block {
				s.start = s.base + int64(s.pos)
			}
			continue
		}
		if ev, ok := s.dispatch(); ok {
			return ev, true
		}
	}
	s.keepData()
	return Event{}, false
}

// Close returns the event that the end of the stream completes: some servers leave
// out the last blank line, or even the last line end.
func (s *Scanner) Close() (Event, bool) {
	s.Feed(nil)
	if len(s.line) > 0 || s.long {
		s.take(s.line, false)
		s.line, s.long = s.line[:0], false
	}
	return s.dispatch()
}

// lineEnd returns the end of the line that starts at pos and where the next begins,
// -1 where the chunk does not hold its end.
func (s *Scanner) lineEnd() (end, next int) {
	if s.nl < s.pos {
		s.nl = indexFrom(s.chunk, s.pos, '\n')
	}
	if s.cr < s.pos {
		s.cr = indexFrom(s.chunk, s.pos, '\r')
	}
	end = min(s.nl, s.cr)
	if end == len(s.chunk) {
		return -1, 0
	}
	return end, end + 1
}

func indexFrom(b []byte, at int, c byte) int {
	if i := bytes.IndexByte(b[at:], c); i >= 0 {
		return at + i
	}
	return len(b)
}

func (s *Scanner) limit() int {
	if s.Limit > 0 {
		return s.Limit
	}
	return DefaultEventLimit
}

// keepLine saves the chunk's unfinished last line.
func (s *Scanner) keepLine() {
	s.appendLine(s.chunk[s.pos:])
	s.pos = len(s.chunk)
}

// appendLine adds to the saved line at most what an event may hold and the field's
// name; the rest is only counted as too long.
func (s *Scanner) appendLine(b []byte) {
	room := s.limit() + len("data: ") + 3 - len(s.line)
	if len(b) > room {
		b = b[:max(room, 0)]
		s.long = true
	}
	s.line = append(s.line, b...)
}

// take handles one line and tells whether it is blank. inChunk says that the line
// lives as long as the chunk.
func (s *Scanner) take(line []byte, inChunk bool) (blank bool) {
	if s.start == 0 && !s.block {
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		return true
	}
	if line[0] == ':' {
		return false
	}
	s.block = true
	name, value, _ := bytes.Cut(line, []byte(":"))
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		s.addData(value, inChunk)
	case "error": // llama.cpp before it sent errors as data
		s.ev.Error = true
		s.addData(value, inChunk)
	case "event":
		s.ev.Error = s.ev.Error || string(value) == "error"
	}
	return false
}

func (s *Scanner) addData(value []byte, inChunk bool) {
	have := len(s.ev.Data)
	if s.data {
		have++
	}
	switch {
	case s.ev.Oversize:
	case s.long || have+len(value) > s.limit():
		s.ev.Oversize = true
		s.ev.Data, s.copied = nil, false
	case !s.data && inChunk:
		s.ev.Data, s.copied = value, false
	default:
		if !s.copied {
			s.joined = append(s.joined[:0], s.ev.Data...)
			s.copied = true
		}
		if s.data {
			s.joined = append(s.joined, '\n')
		}
		s.joined = append(s.joined, value...)
		s.ev.Data = s.joined
	}
	s.data = true
}

// keepData saves the data of an unfinished event from the chunk.
func (s *Scanner) keepData() {
	if s.data && !s.copied && !s.ev.Oversize {
		s.joined = append(s.joined[:0], s.ev.Data...)
		s.ev.Data, s.copied = s.joined, true
	}
}

// dispatch ends the current event; ok is false where it carries no data.
func (s *Scanner) dispatch() (ev Event, ok bool) {
	ev, ok = s.ev, s.data && (len(s.ev.Data) > 0 || s.ev.Oversize)
	ev.Start, ev.End = s.start, s.base+int64(s.pos)
	s.start = ev.End
	s.ev, s.block, s.data, s.copied = Event{}, false, false, false
	if ev.Oversize {
		s.Oversize++
	}
	return ev, ok
}
