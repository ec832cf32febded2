package jinja

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fixedNow is the clock of the goldens.
func fixedNow() time.Time { return time.Date(2025, 7, 4, 9, 5, 6, 70e6, time.UTC) }

// decodeVars reads a JSON object as the variables of a Render, in order and with exact
// numbers.
func decodeVars(t testing.TB, text string) *Dict {
	t.Helper()
	v := decodeValue(t, text)
	if v.k != kDict {
		t.Fatalf("variables are no object: %s", text)
	}
	return v.dict()
}

func decodeValue(t testing.TB, text string) Value {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	v, err := decodeNext(dec)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("text after JSON: %s", text)
	}
	return v
}

func decodeNext(dec *json.Decoder) (Value, error) {
	tok, err := dec.Token()
	if err != nil {
		return Value{}, err
	}
	switch tok := tok.(type) {
	case nil:
		return None(), nil
	case bool:
		return Bool(tok), nil
	case json.Number:
		return Number(tok.String())
	case string:
		return String(tok), nil
	}
	if tok == json.Delim('[') {
		var items []Value
		for dec.More() {
			v, err := decodeNext(dec)
			if err != nil {
				return Value{}, err
			}
			items = append(items, v)
		}
		_, err = dec.Token()
		return List(items), err
	}
	d := NewDict(4)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return Value{}, err
		}
		v, err := decodeNext(dec)
		if err != nil {
			return Value{}, err
		}
		d.Set(key.(string), v)
	}
	_, err = dec.Token()
	return d.Value(), err
}

// render parses and renders in one go.
func render(source string, vars *Dict) (string, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(nil, vars, &Env{Now: fixedNow})
	return string(out), err
}

// difference shows the first place at which two texts differ.
func difference(got, want string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	part := func(s string) string { return strconv.Quote(s[max(0, i-30):min(len(s), i+50)]) }
	return "at byte " + strconv.Itoa(i) + ": got " + part(got) + ", want " + part(want)
}
