package main

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/warmroute/warmroute/proxy"
)

// authConfig says which API keys there are: those of the list and those of the file.
type authConfig struct {
	Keys []keyConfig `yaml:"keys"`
	File string      `yaml:"file"` // YAML, a list like keys
}

// on tells whether a key is needed.
func (c *authConfig) on() bool { return len(c.Keys) > 0 || c.File != "" }

// keyConfig is one API key.
type keyConfig struct {
	Name      string `yaml:"name"`
	SHA256    string `yaml:"sha256"`     // of the key, in hex
	SecretEnv string `yaml:"secret_env"` // variable that holds the key; instead of sha256
	Secret    string `yaml:"secret"`     // only to refuse it with what to do instead

	Models            []string `yaml:"models"`
	Priority          int      `yaml:"priority"`
	MaxInflight       int      `yaml:"max_inflight"`
	RequestsPerMinute int      `yaml:"requests_per_minute"`
	TokensPerMinute   int      `yaml:"tokens_per_minute"`
	CacheSalt         string   `yaml:"cache_salt"`

	Line int `yaml:"-"` // where it stands
}

// UnmarshalYAML reads one entry. Its errors name the setting and the line and repeat nothing
// that may be a key.
func (k *keyConfig) UnmarshalYAML(n ast.Node) error {
	k.Line = n.GetToken().Position.Line
	m, ok := n.(ast.MapNode)
	if !ok {
		return fmt.Errorf("line %d: expected an entry such as - name: alice", k.Line)
	}
	v := reflect.ValueOf(k).Elem()
	for it := m.MapRange(); it.Next(); {
		name, line := it.Key().String(), it.Key().GetToken().Position.Line
		i, ok := keySettings[name]
		if !ok {
			if !settingName.MatchString(name) {
				name = "…"
			}
			known := sortedNames(keySettings)
			return fmt.Errorf("line %d: unknown field %q of a key%s; known are %s", line, name, didYouMean(closest(it.Key().String(), known)), strings.Join(known, ", "))
		}
		switch it.Value().Type() {
		case ast.IntegerType, ast.FloatType:
			if v.Field(i).Kind() == reflect.String { // hex of digits alone is no number
				v.Field(i).SetString(it.Value().GetToken().Value)
				continue
			}
		}
		if err := yaml.NodeToValue(it.Value(), v.Field(i).Addr().Interface()); err != nil {
			return fmt.Errorf("%s (line %d): expected %s", name, line, map[reflect.Kind]string{reflect.Int: "a whole number", reflect.Slice: "a list of names"}[v.Field(i).Kind()])
		}
	}
	return nil
}

// keySettings are the fields of keyConfig by their names in the file.
var keySettings = yamlFields(reflect.TypeFor[keyConfig]())

// The limits of a keys file: what is larger is no list of keys.
const (
	maxKeysFile = 16 << 20
	maxKeys     = 100_000
)

// hashHint is how a key is hashed.
const hashHint = `printf %s "$KEY" | sha256sum | cut -c1-64`

// key reads one entry.
func (k *keyConfig) key() (proxy.Key, error) {
	out := proxy.Key{
		Name: k.Name, Models: k.Models, Priority: k.Priority, MaxInflight: k.MaxInflight,
		RequestsPerMinute: k.RequestsPerMinute, TokensPerMinute: k.TokensPerMinute, CacheSalt: k.CacheSalt,
	}
	switch {
	case k.Secret != "":
		return out, fmt.Errorf("secret: a key in plain text is refused: write sha256: with the output of %s, or secret_env: with the name of a variable that holds it", hashHint)
	case (k.SHA256 == "") == (k.SecretEnv == ""):
		return out, fmt.Errorf("give one of sha256 (the output of %s) and secret_env", hashHint)
	case k.SecretEnv != "":
		secret, ok := lookupEnv(k.SecretEnv)
		if !ok {
			return out, fmt.Errorf("secret_env: the variable %s is not set", k.SecretEnv)
		}
		out.SHA256 = sha256.Sum256([]byte(secret))
	default:
		sum, err := hex.DecodeString(k.SHA256)
		if err != nil || len(sum) != sha256.Size {
			return out, fmt.Errorf("sha256 is no SHA-256 in hex, 64 digits: take the output of %s", hashHint)
		}
		out.SHA256 = [sha256.Size]byte(sum)
	}
	return out, out.Validate()
}

// load reads every key; none is nil. Its errors name the key and its line, never a secret.
func (c *authConfig) load() ([]proxy.Key, error) {
	l := keyList{names: map[string]string{}, hashes: map[[sha256.Size]byte]string{}}
	if err := l.add("auth.keys", c.Keys); err != nil {
		return nil, err
	}
	if c.File == "" {
		return l.keys, nil
	}
	list, err := readKeys(c.File)
	if err != nil {
		return nil, fmt.Errorf("auth.file (--auth-file): %w", err)
	}
	if err := l.add(c.File, list); err != nil {
		return nil, err
	}
	return l.keys, nil
}

// keyList collects keys that differ.
type keyList struct {
	keys   []proxy.Key
	names  map[string]string // where each is
	hashes map[[sha256.Size]byte]string
}

func (l *keyList) add(source string, list []keyConfig) error {
	for i := range list {
		where := fmt.Sprintf("%s: key %d (line %d)", source, i+1, list[i].Line)
		k, err := list[i].key()
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if at, ok := l.names[k.Name]; ok {
			return fmt.Errorf("%s: the name %q is that of %s", where, k.Name, at)
		}
		if at, ok := l.hashes[k.SHA256]; ok {
			return fmt.Errorf("%s: %q has the same key as %s", where, k.Name, at)
		}
		l.names[k.Name], l.hashes[k.SHA256] = where, where
		l.keys = append(l.keys, k)
	}
	return nil
}

// readKeys reads a keys file. One without keys is an error: it would let everybody in.
func readKeys(path string) ([]keyConfig, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxKeysFile+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxKeysFile {
		return nil, fmt.Errorf("%s is larger than 16MiB", path)
	}
	var list []keyConfig
	if err := decodeYAML(path, raw, &list); err != nil {
		return nil, err
	}
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("%s holds no key: write a list, - name: alice, then sha256: with the output of %s", path, hashHint)
	case len(list) > maxKeys:
		return nil, fmt.Errorf("%s holds %d keys, more than %d", path, len(list), maxKeys)
	}
	return list, nil
}

// tlsConfig is the certificate of the OpenAI endpoint; the zero value speaks plain HTTP.
type tlsConfig struct {
	Cert     string `yaml:"cert"`
	Key      string `yaml:"key"`
	ClientCA string `yaml:"client_ca"`
}

// validate names what is missing.
func (c *tlsConfig) validate() error {
	switch {
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("tls: cert and key (--tls-cert, --tls-key) go together")
	case c.ClientCA != "" && c.Cert == "":
		return errors.New("tls.client_ca (--tls-client-ca) needs tls.cert and tls.key")
	}
	return nil
}

// load reads the files; nil is plain HTTP.
func (c *tlsConfig) load() (*tls.Config, error) {
	if c.Cert == "" {
		return nil, nil
	}
	return proxy.LoadTLS(c.Cert, c.Key, c.ClientCA)
}

// secrets reads API keys and certificates.
func (c *config) secrets() ([]proxy.Key, *tls.Config, error) {
	keys, err := c.Auth.load()
	if err != nil {
		return nil, nil, err
	}
	certificates, err := c.TLS.load()
	return keys, certificates, err
}

// unknownKeys returns the names under speculative_prefill.keys that no API key has.
func (c *config) unknownKeys(keys []proxy.Key) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Prefill.Keys)) {
		if c.Auth.on() && !slices.ContainsFunc(keys, func(k proxy.Key) bool { return k.Name == name }) {
			names = append(names, name)
		}
	}
	return names
}

// files are those beside the configuration file that a change of is followed.
func (c *config) files() []string {
	var out []string
	for _, f := range []string{c.Auth.File, c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA} {
		if f != "" {
			out = append(out, f)
		}
	}
	return out
}
