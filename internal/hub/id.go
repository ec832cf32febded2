package hub

import (
	"fmt"
	"strings"
)

// The longest name or namespace the hub allows, and a bound for revisions, in bytes.
const (
	maxName     = 96
	maxRevision = 200
)

// Looks reports whether a string has the form of a hub id, "name" or "org/name". It asks
// nobody: a relative path of one or two plain elements has that form too.
func (h *Hub) Looks(id string) bool { return checkID(id) == nil }

// checkID applies the hub's own rules, in ASCII. An accepted id is safe as one element of a
// file name (with "/" replaced by "--") and as a URL path.
func checkID(id string) error {
	parts := strings.Split(id, "/")
	if len(parts) > 2 || strings.Contains(id, "--") || strings.Contains(id, "..") || strings.HasSuffix(id, ".git") {
		return fmt.Errorf("%s is not a model id: want name or org/name", quote(id))
	}
	for _, p := range parts {
		if p == "" || len(p) > maxName || edge(p[0]) || edge(p[len(p)-1]) || !plain(p, "-_.") {
			return fmt.Errorf("%s is not a model id: want name or org/name of letters, digits and - _ . inside", quote(id))
		}
	}
	return nil
}

// edge reports a byte that may not begin or end a name.
func edge(c byte) bool { return c == '-' || c == '.' }

// checkRevision accepts branches, tags and commits whose name is a safe relative path.
func checkRevision(revision string) error {
	if len(revision) > maxRevision || !plain(revision, "-_.+@/") {
		return fmt.Errorf("%s is not a revision: want a branch, tag or commit", quote(revision))
	}
	for p := range strings.SplitSeq(revision, "/") {
		if p == "" || p[0] == '.' || strings.Contains(p, "..") {
			return fmt.Errorf("%s is not a revision: want a branch, tag or commit", quote(revision))
		}
	}
	return nil
}

// plain reports whether s holds only ASCII letters, digits and the bytes of extra.
func plain(s, extra string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(extra, c) < 0 {
			return false
		}
	}
	return true
}

// isCommit reports a full commit hash: content named by it never changes.
func isCommit(s string) bool { return isHex(s, 40) }

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// quote shortens and quotes a string that came from outside.
func quote(s string) string {
	if len(s) > 120 {
		s = s[:120] + "..."
	}
	return fmt.Sprintf("%q", s)
}
