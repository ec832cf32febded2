package hub

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

const defaultEndpoint = "https://huggingface.co"

// environ reads the variables that huggingface_hub reads, with its order of precedence.
type environ func(string) string

func (env environ) first(names ...string) string {
	for _, name := range names {
		if v := env(name); v != "" {
			return v
		}
	}
	return ""
}

// path returns the first variable that is set, with ~ and $NAME replaced.
func (env environ) path(names ...string) string {
	p := env.first(names...)
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || rest[0] == '/' || rest[0] == filepath.Separator) {
		p = env.userHome() + rest
	}
	return os.Expand(p, func(name string) string {
		if v := env(name); v != "" {
			return v
		}
		return "$" + name
	})
}

func (env environ) userHome() string { return env.first("HOME", "USERPROFILE") }

// home returns Hugging Face's directory, "" if not even the user's home is known.
func (env environ) home() string {
	if p := env.path("HF_HOME"); p != "" {
		return p
	}
	if p := env.path("XDG_CACHE_HOME"); p != "" {
		return filepath.Join(p, "huggingface")
	}
	if p := env.userHome(); p != "" {
		return filepath.Join(p, ".cache", "huggingface")
	}
	return ""
}

func (env environ) cache() string {
	if p := env.path("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"); p != "" {
		return p
	}
	if home := env.home(); home != "" {
		return filepath.Join(home, "hub")
	}
	return ""
}

func (env environ) offline() bool {
	switch strings.ToLower(env.first("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// token returns "" when there is none, which is enough for public models.
func (env environ) token() string {
	if t := strings.TrimSpace(env.first("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")); t != "" {
		return t
	}
	file := env.path("HF_TOKEN_PATH")
	if file == "" && env.home() != "" {
		file = filepath.Join(env.home(), "token")
	}
	if file == "" {
		return ""
	}
	b, err := readSmall(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// checkToken keeps bytes that no HTTP header may hold out of one; the error does not show
// the token.
func checkToken(token string) error {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return errors.New("the Hugging Face token (HF_TOKEN) holds a blank, control or non-ASCII character")
		}
	}
	return nil
}

func parseEndpoint(s string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(s, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the hub's address (HF_ENDPOINT) is not an http or https URL")
	}
	u.RawQuery, u.Fragment = "", ""
	return u, nil
}
