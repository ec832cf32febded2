package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envPrefix begins the names of all variables that set something.
const envPrefix = "WARMROUTE_"

// injected are the variables with which Kubernetes tells every container of a namespace
// where a Service is whose name begins with warmroute.
var injected = regexp.MustCompile(`^WARMROUTE_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// ofTargets are the variables of make's targets, in whose environment the binary runs, too.
var ofTargets = regexp.MustCompile(`^WARMROUTE_(DATA|SOAK|CHAOS|OVERHEAD|NGINX|PYTHON|SEED|TABLE|TOKENIZERS|(INTEROP|JINJA|BENCH|CONFORMANCE)_[A-Z0-9_]+)$`)

// strayVariables returns a line for each variable of environ that looks like a setting and
// is one of no verb: its author believes that it has an effect. They are no error, as
// unknown keys of the file are, because an environment is shared. also returns other names
// that are in use.
func strayVariables(root *cobra.Command, environ []string, also func() []string) (lines []string) {
	known := variables(root)
	others := map[string]bool(nil)
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, envPrefix) || value == "" || known[name] || injected.MatchString(name) || ofTargets.MatchString(name) {
			continue
		}
		if others == nil {
			others = map[string]bool{}
			for _, n := range also() {
				others[n] = true
			}
		}
		if !others[name] {
			lines = append(lines, fmt.Sprintf("the variable %s is not known and has no effect%s", name, didYouMean(closest(name, slices.Sorted(maps.Keys(known))))))
		}
	}
	slices.Sort(lines)
	return lines
}

// variables are the names of all settings of all verbs.
func variables(root *cobra.Command) map[string]bool {
	out := map[string]bool{}
	root.Flags().VisitAll(func(f *pflag.Flag) { out[envName(f.Name)] = true })
	for _, c := range root.Commands() {
		maps.Copy(out, variables(c))
	}
	return out
}

// warnVariables says which variables of the environment have no effect.
func warnVariables(cmd *cobra.Command, say func(line string)) {
	for _, line := range strayVariables(cmd.Root(), os.Environ(), func() []string { return nil }) {
		say(line)
	}
}

// secretVariables are the names of variables that hold API keys.
func (c *authConfig) secretVariables() (names []string) {
	list := c.Keys
	if c.File != "" {
		more, _ := readKeys(c.File) // load reports errors
		list = append(slices.Clip(list), more...)
	}
	for _, k := range list {
		names = append(names, k.SecretEnv)
	}
	return names
}
