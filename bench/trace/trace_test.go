package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

func TestReader_Rows(t *testing.T) {
	in := `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 18446744073709551615]}

	{"created_time": 1500.25, "output_length": 0, "hash_ids": [7], "session_id": "s", "text_input": "ignored"}
{"delay": 250, "input_length": 9999, "output_length": 1, "hash_ids": [7, 8], "session_id": "s"}
{"timestamp": 3000, "delay_ms": 0.5, "output_length": 1, "hash_ids": [7, 8], "session_id": "s"}
{"timestamp": 4000, "output_length": 1, "hash_ids": [9], "session_id": 12, "delay": null}
`
	r := NewReader(strings.NewReader(in), 0)
	var got []string
	var q Request
	for {
		err := r.Read(&q)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d: %v/%v %v/%v in=%d out=%d %v %q", q.Line, q.Time, q.HasTime, q.Delay, q.HasDelay, q.InputTokens, q.OutputTokens, q.HashIDs, q.Session))
	}
	want := []string{
		`1: 0s/true 0s/false in=700 out=5 [0 18446744073709551615] ""`,
		`3: 1.50025s/true 0s/false in=512 out=0 [7] "s"`,
		`4: 0s/false 250ms/true in=1024 out=1 [7 8] "s"`,
		`5: 3s/true 500µs/true in=1024 out=1 [7 8] "s"`,
		`6: 4s/true 0s/false in=512 out=1 [9] "12"`,
	}
	if !slices.Equal(got, want) || r.Clamped != 1 {
		t.Errorf("clamped %d\ngot  %s\nwant %s", r.Clamped, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestReader_FaultsNameLineAndField(t *testing.T) {
	f := func(row, want string) {
		t.Helper()
		_, err := ReadAll(strings.NewReader("\n"+row+"\n"), 0)
		if err == nil || err.Error() != "line 2: "+want {
			t.Errorf("%s:\ngot  %v\nwant line 2: %s", row, err, want)
		}
	}
	f(`{"timestamp":0`, `not a JSON object: unexpected end of JSON input`)
	f(`[]`, `expected a JSON object, got array`)
	f(`{"timestamp":0,"output_length":1}`, `hash_ids: missing`)
	f(`{"timestamp":0,"output_length":1,"hash_ids":[]}`, `hash_ids: expected at least one id`)
	f(`{"timestamp":0,"output_length":1,"hash_ids":[-1]}`, `hash_ids: expected an array of whole numbers from 0 to 18446744073709551615, got number -1`)
	f(`{"timestamp":0,"output_length":1,"hash_ids":[18446744073709551616]}`, `hash_ids: expected an array of whole numbers from 0 to 18446744073709551615, got number 18446744073709551616`)
	f(`{"timestamp":0,"output_length":1,"hash_ids":"1"}`, `hash_ids: expected an array of whole numbers from 0 to 18446744073709551615, got string`)
	f(`{"timestamp":0,"hash_ids":[1]}`, `output_length: missing`)
	f(`{"timestamp":0,"output_length":-1,"hash_ids":[1]}`, `output_length: expected no less than 0, got -1`)
	f(`{"timestamp":0,"output_length":1.5,"hash_ids":[1]}`, `output_length: expected a whole number of tokens, got number 1.5`)
	f(`{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[1]}`, `input_length: expected no less than 1, got 0`)
	f(`{"timestamp":"now","output_length":1,"hash_ids":[1]}`, `timestamp: expected milliseconds, got string`)
	f(`{"timestamp":-1,"output_length":1,"hash_ids":[1]}`, `timestamp: expected milliseconds from 0 to 4611686018427, got -1`)
	f(`{"timestamp":1e300,"output_length":1,"hash_ids":[1]}`, `timestamp: expected milliseconds from 0 to 4611686018427, got 1e+300`)
	f(`{"timestamp":1,"created_time":1,"output_length":1,"hash_ids":[1]}`, `timestamp and created_time are the same field; send one`)
	f(`{"output_length":1,"hash_ids":[1]}`, `timestamp: missing; send it, or a delay on a session's later turn`)
	f(`{"timestamp":0,"delay":5,"output_length":1,"hash_ids":[1]}`, `delay: needs a session_id: it is the time since the session's last turn`)
	f(`{"timestamp":0,"delay":5,"session_id":"s","output_length":1,"hash_ids":[1]}`, `delay: session "s" has no turn before this one`)
	f(`{"timestamp":0,"session_id":["s"],"output_length":1,"hash_ids":[1]}`, `session_id: expected a string or a number`)
	f(`{"timestamp":0,"output_length":1,"hash_ids":[`+strings.Repeat("1,", maxLine/2)+`1]}`, `longer than 32 MiB`)

	first := `{"timestamp":0,"session_id":"s","output_length":1,"hash_ids":[1]}` + "\n"
	_, err := ReadAll(strings.NewReader(first+`{"delay":-5,"session_id":"s","output_length":1,"hash_ids":[1]}`), 0)
	if want := `line 2: delay: expected milliseconds from 0 to 4611686018427, got -5`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReader_Gzip(t *testing.T) {
	row := `{"timestamp":1,"output_length":1,"hash_ids":[1,2]}` + "\n"
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, row)
	z.Close()
	got, err := ReadAll(bytes.NewReader(b.Bytes()), 0)
	if err != nil || len(got) != 1 || len(got[0].HashIDs) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := ReadAll(bytes.NewReader(b.Bytes()[:b.Len()-6]), 0); err == nil || !strings.HasPrefix(err.Error(), "line ") {
		t.Errorf("a cut file gave %v", err)
	}
	if _, err := ReadAll(strings.NewReader("\x1f\x8bx"), 0); err == nil {
		t.Error("a broken header was read")
	}
}

// TestTokens_AsDynamo pins the public vectors for ids below 1<<32.
func TestTokens_AsDynamo(t *testing.T) {
	tokens := appendTokens(nil, []uint64{46}, 512, 512)
	f := func(size int, want uint64) {
		t.Helper()
		if got := kv.HashBlock(tokens[:size], nil, kv.BaseSeed); uint64(got) != want {
			t.Errorf("46 x %d = %d, want %d", size, got, want)
		}
	}
	f(64, 4218722068121879188)
	f(128, 1075869293209628459)
	f(512, 6010885096840287250)
	if got := appendTokens([]uint32{9}, []uint64{1, 2, 3}, 4, 6); fmt.Sprint(got) != "[9 1 1 1 1 2 2]" {
		t.Errorf("got %v", got)
	}
	if got := appendTokens(nil, []uint64{1, 2}, 2, 99); fmt.Sprint(got) != "[1 1 2 2]" {
		t.Errorf("got %v", got)
	}
	if got := appendTokens(nil, []uint64{1, 2}, 2, 0); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestFC57_WideHashIDsStayDistinct: ids that agree in their low 32 bits are different
// prompts, through the reader and down to the block hashes.
func TestFC57_WideHashIDsStayDistinct(t *testing.T) {
	const x = 77
	ids := []uint64{x, x + 1<<32, x + 2<<32, x<<32 | x, x << 32, x<<32 | 1, 1<<32 | x<<8, math.MaxUint64, math.MaxUint32, 0, 1 << 63}
	var in strings.Builder
	for i, id := range ids {
		fmt.Fprintf(&in, `{"timestamp":%d,"input_length":512,"output_length":1,"hash_ids":[%d]}`+"\n", i, id)
	}
	rows, err := ReadAll(strings.NewReader(in.String()), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{2, 16, 64, 512} {
		seen := map[kv.SequenceHash]uint64{}
		for i, q := range rows {
			if q.HashIDs[0] != ids[i] {
				t.Fatalf("id %d was read as %d", ids[i], q.HashIDs[0])
			}
			h := kv.AppendSequenceHashes(nil, q.Tokens(nil, DefaultBlockTokens), size, kv.BaseSeed)[0]
			if other, ok := seen[h]; ok {
				t.Errorf("ids %d and %d share their first block of %d tokens", other, ids[i], size)
			}
			seen[h] = ids[i]
		}
	}
}

func TestReadAll_RowsAreTheirOwn(t *testing.T) {
	rows, err := ReadAll(strings.NewReader(`{"timestamp":0,"output_length":1,"hash_ids":[1,2]}`+"\n"+`{"timestamp":1000,"output_length":1,"hash_ids":[3,4]}`), 128)
	if err != nil || len(rows) != 2 || rows[0].HashIDs[0] != 1 || rows[1].Time != time.Second || rows[1].InputTokens != 256 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// FuzzReader: no input panics, and what is read can be expanded.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":700,"output_length":5,"hash_ids":[0,18446744073709551615]}`))
	f.Add([]byte(`{"created_time":1.5,"session_id":"s","output_length":5,"hash_ids":[1]}` + "\n" + `{"delay":5,"session_id":"s","output_length":5,"hash_ids":[1,2]}`))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in), 4)
		var q Request
		for r.Read(&q) == nil {
			if n := len(q.Tokens(nil, 4)); n != q.InputTokens || n == 0 || q.OutputTokens < 0 || !q.HasTime && !q.HasDelay || q.Time < 0 || q.Delay < 0 {
				t.Fatalf("%d tokens of %+v", n, q)
			}
		}
	})
}

// BenchmarkReader reads rows of 24 ids, the mean of the public conversation trace.
func BenchmarkReader(b *testing.B) {
	var ids []string
	for i := range 24 {
		ids = append(ids, fmt.Sprint(100000+i))
	}
	row := `{"timestamp": 27482, "input_length": 12035, "output_length": 343, "hash_ids": [` + strings.Join(ids, ", ") + "]}\n"
	in := strings.Repeat(row, 1000)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(strings.NewReader(in), 0)
		var q Request
		for r.Read(&q) == nil {
		}
	}
}
