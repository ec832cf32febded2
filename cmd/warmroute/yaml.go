package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// decodeYAML reads the one document of a file over *dst, whose present values are the
// defaults. What the file may hold is what the type has yaml tags for. Errors name the
// file, the line, the section and the key, what is expected and the closest known keys; no
// error repeats a value, which may be a credential. An empty file changes nothing.
func decodeYAML(path string, raw []byte, dst any) error {
	v := reflect.ValueOf(dst).Elem()
	file, err := parser.ParseBytes(raw, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return fmt.Errorf("%s%s: %s%s", path, line(err), mistakenKey(raw, err), message(err))
	}
	seen := 0
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType {
			continue
		}
		if seen++; seen > 1 {
			return fmt.Errorf("%s: more than one YAML document", path)
		}
		if err := checkNode("", doc.Body, v); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	merged := reflect.New(v.Type())
	merged.Elem().Set(v)
	d := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict())
	if err := d.Decode(merged.Interface()); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s%s: %s%s", path, line(err), mistakenKey(raw, err), message(err))
	}
	if !merged.Elem().IsZero() { // a file of comments decodes to nothing, also of the defaults
		v.Set(merged.Elem())
	}
	return nil
}

// line returns where an error of the parser is, as " (line 3)".
func line(err error) string {
	var at yaml.Error
	if errors.As(err, &at) && at.GetToken() != nil {
		return fmt.Sprintf(" (line %d)", at.GetToken().Position.Line)
	}
	return ""
}

// message returns the text of an error of the parser without its place and source.
func message(err error) string {
	var kind *yaml.TypeError
	var at yaml.Error
	switch {
	case errors.As(err, &kind): // its words are of Go types
		return "a value of another kind is expected"
	case errors.As(err, &at):
		return at.GetMessage()
	}
	return err.Error()
}

// mistakenKey returns the key of the line in which the file is wrong, not the line: it
// and those around it may hold credentials.
func mistakenKey(file []byte, err error) string {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil {
		return ""
	}
	lines := bytes.Split(file, []byte("\n"))
	n := at.GetToken().Position.Line - 1
	if n < 0 || n >= len(lines) {
		return ""
	}
	key, _, ok := bytes.Cut(lines[n], []byte(":"))
	if !ok {
		return ""
	}
	name := string(bytes.TrimLeft(key, " -"))
	if !settingName.MatchString(name) {
		return ""
	}
	return name + ": "
}

// settingName is what the name of a setting looks like.
var settingName = regexp.MustCompile(`^[a-z][a-z_]{0,30}$`)

// nodeReader is a type that reads its node by itself, with errors of its own.
var nodeReader = reflect.TypeFor[yaml.NodeUnmarshaler]()

// checkNode tells whether a node of the file can be what v, a default, is. path is the
// setting's, "" for the whole file.
func checkNode(path string, n ast.Node, v reflect.Value) error {
	switch n := n.(type) {
	case *ast.AnchorNode:
		return checkNode(path, n.Value, v)
	case *ast.TagNode:
		return checkNode(path, n.Value, v)
	case *ast.AliasNode, *ast.NullNode:
		return nil // checked where it stands; the default
	}
	if reflect.PointerTo(v.Type()).Implements(nodeReader) {
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return checkSection(path, n, v)
	case reflect.Map:
		m, ok := n.(ast.MapNode)
		if !ok {
			return expected(path, n, "names and their values, such as a: b")
		}
		names := places{}
		for it := m.MapRange(); it.Next(); {
			if err := names.add(path, it.Key()); err != nil {
				return err
			}
			if err := checkNode(join(path, keyName(it.Key())), it.Value(), reflect.Zero(v.Type().Elem())); err != nil {
				return err
			}
		}
		return nil
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			return expected(path, n, listForm(v.Type().Elem()))
		}
		for i, item := range list.Values {
			if err := checkNode(fmt.Sprintf("%s[%d]", path, i), item, reflect.Zero(v.Type().Elem())); err != nil {
				return err
			}
		}
		return nil
	}
	if s, ok := n.(ast.ScalarNode); !ok || !fits(v.Kind(), s) {
		return expected(path, n, form(v.Kind(), fmt.Sprint(v)))
	}
	return nil
}

// checkSection checks the keys of a struct and their values.
func checkSection(path string, n ast.Node, v reflect.Value) error {
	known := yamlFields(v.Type())
	m, ok := n.(ast.MapNode)
	if !ok {
		return expected(path, n, "a section with the keys "+strings.Join(sortedNames(known), ", "))
	}
	names := places{}
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			continue
		}
		if err := names.add(path, it.Key()); err != nil {
			return err
		}
		name := it.Key().GetToken().Value
		i, ok := known[name]
		if !ok {
			return unknownKey(path, it.Key(), known)
		}
		if err := checkNode(join(path, name), it.Value(), v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// places are the lines of the keys of one section.
type places map[string]int

func (p places) add(path string, key ast.MapKeyNode) error {
	name, at := key.GetToken().Value, key.GetToken().Position.Line
	if first, ok := p[name]; ok {
		return fmt.Errorf("%s (line %d): the key is already defined in line %d", join(path, keyName(key)), at, first)
	}
	p[name] = at
	return nil
}

func unknownKey(path string, key ast.MapKeyNode, known map[string]int) error {
	names, where := sortedNames(known), path
	if path == "" {
		where = "the file"
	}
	like := closest(key.GetToken().Value, names)
	if at := settingPaths[key.GetToken().Value]; len(like) == 0 && at != "" {
		like = []string{at}
	}
	return fmt.Errorf("%s (line %d): unknown key%s; known in %s are %s", join(path, keyName(key)), key.GetToken().Position.Line,
		didYouMean(like), where, strings.Join(names, ", "))
}

// settingPaths are the places of settings within sections, by the last part of their names.
var settingPaths = func() map[string]string {
	out := map[string]string{}
	t := reflect.TypeFor[config]()
	for i := range t.NumField() {
		if section := t.Field(i); section.Type.Kind() == reflect.Struct {
			for name := range yamlFields(section.Type) {
				out[name] = section.Tag.Get("yaml") + "." + name
			}
		}
	}
	return out
}()

// yamlFields are the fields of a struct by their names in the file.
func yamlFields(t reflect.Type) map[string]int {
	out := map[string]int{}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); name != "-" && name != "" {
			out[name] = i
		}
	}
	return out
}

func sortedNames(m map[string]int) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// keyName is a key as errors show it: what looks like no name may be a secret.
func keyName(key ast.MapKeyNode) string {
	if name := key.GetToken().Value; settingName.MatchString(name) {
		return name
	}
	return "…"
}

func expected(path string, n ast.Node, what string) error {
	if path == "" {
		path = "the file"
	}
	return fmt.Errorf("%s (line %d): expected %s", path, n.GetToken().Position.Line, what)
}

func listForm(item reflect.Type) string {
	if item.Kind() != reflect.Struct {
		return "a list such as [a, b]"
	}
	return "a list, each entry with a - before its first key"
}

// fits tells whether a scalar can be of a kind.
func fits(k reflect.Kind, n ast.ScalarNode) bool {
	text := n.GetToken().Value
	var err error
	switch k {
	case reflect.Int:
		if _, err = strconv.Atoi(text); err != nil {
			_, err = strconv.ParseInt(text, 0, 0) // 0x10, 1_000
		}
	case reflect.Float64:
		_, err = strconv.ParseFloat(text, 64)
	case reflect.Bool:
		return n.Type() == ast.BoolType
	}
	return err == nil
}

// form says what a value of a kind looks like. example is one, perhaps.
func form(k reflect.Kind, example string) string {
	what := "one value"
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		what = "a whole number"
		if example == "0" || example == "" {
			example = "4"
		}
	case reflect.Uint64:
		what = "a whole number from 0 up"
	case reflect.Float64:
		what = "a number"
		if example == "0" || example == "" {
			example = "0.5"
		}
	}
	if example == "" {
		return what
	}
	return what + " such as " + example
}
