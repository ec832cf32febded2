package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// pieces is a connection that delivers one piece a read.
type pieces [][]byte

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; len((*p)[0]) == 0 {
		*p = (*p)[1:]
	}
	return n, nil
}

func chunked(parts ...string) string {
	var b strings.Builder
	for _, s := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(s), s)
	}
	return b.String() + "0\r\n\r\n"
}

func TestBody_IsTheSameWhateverThePieces(t *testing.T) {
	const seed = 1
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := func(name string, framing int, wire, want string, wantErr error) {
		t.Helper()
		for range 200 {
			var p pieces
			for rest := []byte(wire); len(rest) > 0; {
				n := 1 + rnd.IntN(min(len(rest), 9))
				p, rest = append(p, rest[:n]), rest[n:]
			}
			var b body
			length := int64(0)
			if framing == framingLength {
				length = int64(len(want))
				if wantErr != io.EOF {
					length++
				}
			}
			b.reset(bufio.NewReaderSize(&p, 16), framing, length)
			var got []byte
			var err error
			for err == nil {
				buf := make([]byte, 1+rnd.IntN(7))
				var n int
				n, err = b.Read(buf)
				got = append(got, buf[:n]...)
			}
			if string(got) != want || !errors.Is(err, wantErr) {
				t.Fatalf("%s (seed %d): got %q, %v; want %q, %v", name, seed, got, err, want, wantErr)
			}
			if _, again := b.Read(make([]byte, 1)); wantErr == io.EOF && again != io.EOF {
				t.Fatalf("%s: a read after the end gives %v", name, again)
			}
		}
	}
	f("chunked", framingChunked, chunked("data: 1\n\n", "data: 22\n\n", "x"), "data: 1\n\ndata: 22\n\nx", io.EOF)
	f("chunked with a leading zero", framingChunked, "03\r\nabc\r\n00\r\n\r\n", "abc", io.EOF)
	f("chunk extension", framingChunked, "3;a=b\r\nabc\r\n0\r\n\r\n", "abc", io.EOF)
	f("trailers", framingChunked, "3\r\nabc\r\n0\r\nX: 1\r\nY: 2\r\n\r\n", "abc", io.EOF)
	f("chunked, cut in a chunk", framingChunked, "5\r\nabc", "abc", io.ErrUnexpectedEOF)
	f("chunked, cut before the end", framingChunked, "3\r\nabc\r\n", "abc", io.ErrUnexpectedEOF)
	f("chunked, cut in the last line", framingChunked, "3\r\nabc\r\n0\r\n", "abc", io.ErrUnexpectedEOF)
	f("chunk longer than its size", framingChunked, "3\r\nabcd\r\n0\r\n\r\n", "abc", errMalformedBody)
	f("no size", framingChunked, "\r\nabc", "", errMalformedBody)
	f("size is not hexadecimal", framingChunked, "zz\r\nabc", "", errMalformedBody)
	f("size overflows", framingChunked, "ffffffffffffffff\r\nabc", "", errMalformedBody)
	f("endless size line", framingChunked, "3;"+strings.Repeat("x", 99), "", errMalformedBody)
	f("length", framingLength, "abcdef", "abcdef", io.EOF)
	f("length, cut", framingLength, "abcdef", "abcdef", io.ErrUnexpectedEOF)
	f("until close", framingClose, "abcdef", "abcdef", io.EOF)
	f("none", framingNone, "abc", "", io.EOF)
}

// TestBody_CoalescesWhatHasArrived: a burst is one read, and a read never waits for more
// than it has.
func TestBody_CoalescesWhatHasArrived(t *testing.T) {
	wire := chunked("data: 1\n\n", "data: 2\n\n", "data: 3\n\n")
	whole := "data: 1\n\ndata: 2\n\ndata: 3\n\n"
	var b body
	b.reset(bufio.NewReader(&pieces{[]byte(wire)}), framingChunked, 0)
	buf := make([]byte, 100)
	if n, err := b.Read(buf); err != nil || string(buf[:n]) != whole {
		t.Fatalf("first read gives %q, %v", buf[:n], err)
	}
	// Cut anywhere: the first read gives every byte of data that its first piece holds.
	for cut := 4; cut < len(wire); cut++ {
		r, w := io.Pipe()
		b.reset(bufio.NewReader(r), framingChunked, 0)
		go func() { _, _ = w.Write([]byte(wire[:cut])) }() // the pipe is closed below
		n, err := b.Read(buf)
		if err != nil || n == 0 || !strings.HasPrefix(whole, string(buf[:n])) {
			t.Fatalf("cut at %d: %q, %v", cut, buf[:n], err)
		}
		got := dataBytes(wire[:cut])
		if n != got {
			t.Fatalf("cut at %d: %d bytes, %d have arrived", cut, n, got)
		}
		_ = r.Close()
	}
}

// dataBytes counts the bytes of chunk data in a prefix of a chunked body.
func dataBytes(wire string) (n int) {
	for {
		size := 0
		if _, err := fmt.Sscanf(wire, "%x\r\n", &size); err != nil || size == 0 || !strings.Contains(wire, "\n") {
			return n
		}
		_, wire, _ = strings.Cut(wire, "\n")
		n += min(size, len(wire))
		if len(wire) < size+2 {
			return n
		}
		wire = wire[size+2:]
	}
}

func TestBody_AllocatesNothing(t *testing.T) {
	event := "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"
	wire := []byte(strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", len(event), event), 64))
	src := bytes.NewReader(nil)
	br := bufio.NewReaderSize(src, readBufferBytes)
	buf := make([]byte, 4096)
	var b body
	if n := testing.AllocsPerRun(20, func() {
		src.Reset(wire)
		br.Reset(src)
		b.reset(br, framingChunked, 0)
		for total := 0; total < 64*len(event); {
			n, err := b.Read(buf)
			if total += n; err != nil {
				panic(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations per 64 chunks", n)
	}
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(chunked("abc", "defg")))
	f.Add([]byte("3;x\r\nabc\r\n0\r\nT: 1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		var whole, single body
		whole.reset(bufio.NewReaderSize(bytes.NewReader(wire), 64), framingChunked, 0)
		a, errA := io.ReadAll(&whole)
		var p pieces
		for i := range wire {
			p = append(p, wire[i:i+1])
		}
		single.reset(bufio.NewReaderSize(&p, 64), framingChunked, 0)
		b, errB := io.ReadAll(&single)
		if !bytes.Equal(a, b) || (errA == nil) != (errB == nil) {
			t.Fatalf("whole %q, %v; byte by byte %q, %v", a, errA, b, errB)
		}
	})
}
