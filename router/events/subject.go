package events

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// subjects names the subjects of one cluster.
type subjects struct{ base string }

func newSubjects(prefix, cluster string) (subjects, error) {
	prefix, cluster = cmp.Or(prefix, "warmroute"), cmp.Or(cluster, "default")
	for _, p := range strings.Split(prefix, ".") {
		if p == "" || encodeToken(p) != p {
			return subjects{}, fmt.Errorf("subject prefix %q: use letters, digits, '-' and '_', parts joined by dots", prefix)
		}
	}
	return subjects{base: prefix + ".v" + strconv.Itoa(Version) + "." + encodeToken(cluster)}, nil
}

func (s subjects) workers() string { return s.base + ".workers" }

func (s subjects) deltas(worker string, rank int) string {
	return s.base + ".kv." + encodeToken(worker) + "." + strconv.Itoa(rank)
}

func (s subjects) state(worker string, rank int) string {
	return s.base + ".state." + encodeToken(worker) + "." + strconv.Itoa(rank)
}

// states matches the state subjects of all ranks of a worker.
func (s subjects) states(worker string) string {
	return s.base + ".state." + encodeToken(worker) + ".*"
}

// load is the subject of a proxy's bookings, loads matches those of all.
func (s subjects) load(proxy string) string { return s.base + ".load." + encodeToken(proxy) }

func (s subjects) loads() string { return s.base + ".load.*" }

// lastToken returns the rank in a state subject, or the proxy in a load subject.
func lastToken(subject string) string {
	return subject[strings.LastIndexByte(subject, '.')+1:]
}

// encodeToken makes any id one token of a subject: letters, digits, '-' and '_' stay,
// every other byte becomes '=' and two hex digits, and the empty id is "=".
func encodeToken(id string) string {
	if id == "" {
		return "="
	}
	var b strings.Builder
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}
