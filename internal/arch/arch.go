// Package arch holds the import table of the project as data. It answers the question
// "may this package import that one?".
//
//	layer 6   cmd/warmroute · internal/testcluster
//	layer 5   proxy · bench/replay · bench/indexer
//	layer 4   prefill · bench · internal/sim · internal/upstream
//	layer 3   router · router/events · internal/prompt · bench/trace · bench/report
//	layer 2   router/index · internal/tokenizer · internal/kvwire
//	layer 1   router/kv · internal/openai · internal/jinja · internal/hub · internal/script · internal/arch
//
// Imports go strictly downward, never within a layer. Each third-party library has
// one home, so that a change of library touches one package. The test of this package
// enforces both with go list; test files are exempt.
package arch

// Module is the import path of the project's root.
const Module = "github.com/warmroute/warmroute"

// Layers lists the packages of each layer by their path below Module, lowest first.
// A package that is in no layer may not exist.
var Layers = [][]string{
	{"router/kv", "internal/openai", "internal/jinja", "internal/hub", "internal/script", "internal/arch"},
	{"router/index", "internal/tokenizer", "internal/kvwire"},
	{"router", "router/events", "internal/prompt", "bench/trace", "bench/report"},
	{"prefill", "bench", "internal/sim", "internal/upstream"},
	{"proxy", "bench/replay", "bench/indexer"},
	{"cmd/warmroute", "internal/testcluster"},
}

// Homes names the packages in which each third-party library may be imported. A
// library that is absent may not be used. "metrics.go" means every package that has such
// a file: metrics are declared there, Config passes the Registerer.
var Homes = map[string][]string{
	"github.com/valyala/fasthttp":                             {"proxy", "internal/upstream", "internal/sim"},
	"github.com/armon/go-radix":                               {"router/index"},
	"github.com/nats-io/nats.go":                              {"router/events"},
	"github.com/nats-io/nats-server/v2":                       {"router/events"},
	"github.com/go-zeromq/zmq4":                               {"internal/kvwire"},
	"github.com/tinylib/msgp":                                 {"internal/kvwire"},
	"github.com/sashabaranov/go-openai":                       {"bench"},
	"github.com/prometheus/client_golang/prometheus":          {"metrics.go", "cmd/warmroute"},
	"github.com/prometheus/client_golang/prometheus/promhttp": {"proxy", "cmd/warmroute"},
	"github.com/zeebo/xxh3":                                   {"router/kv", "router/index", "internal/sim"},
	"github.com/spf13/cobra":                                  {"cmd/warmroute"},
	"github.com/spf13/pflag":                                  {"cmd/warmroute"},
	"github.com/goccy/go-yaml":                                {"cmd/warmroute"},
	"github.com/fsnotify/fsnotify":                            {"cmd/warmroute"},
	"golang.org/x/sync":                                       {"cmd/warmroute", "router", "router/events", "internal/upstream", "internal/prompt", "internal/sim", "proxy", "internal/testcluster"},
	"golang.org/x/sys":                                        {"proxy"},
	"golang.org/x/text":                                       {"internal/tokenizer"},
}
