package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const envPrefix = "DELTAPLANE_"

// activeHelp is set by the completion scripts of cobra.
const activeHelp = envPrefix + "ACTIVE_HELP"

// ownTests are the variables of this project's tests, examples and builds that are no settings.
var ownTests = set(
	"ANSWERS", "CACHE", "CHAOS", "CHAOS_DIR", "CHAOS_SEED", "CLIENTS", "COMPOSE", "CONSOLE_PICTURES", "CONSOLE_ROWS", "CONTAINERD_BIN", "ENGINE", "ETCD", "EXAMPLE", "FAILOVERS",
	"GOLDEN", "IMAGE", "KILL_JOBS", "KUBE", "KUBECTL", "KUBE_PROGRAMS", "MODFILE_DIR", "QUEUE", "REDIS_SERVER", "REQUESTS", "ROUNDS",
	"SEED", "SOAK_OPS", "SWAPS", "WRITES",
)

// ownTestPrefixes begin variables that are no settings either.
var ownTestPrefixes = []string{envPrefix + "TEST_", envPrefix + "BENCH_"}

func set(names ...string) map[string]bool {
	out := map[string]bool{}
	for _, name := range names {
		out[envPrefix+name] = true
	}
	return out
}

// variables are those of an environment that have this program's prefix.
func variables(environment []string) map[string]string {
	out := map[string]string{}
	for _, entry := range environment {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, envPrefix) {
			out[name] = value
		}
	}
	return out
}

// known are the settings of all commands: the commands of each flag.
type known map[string][]string

func knownSettings(root *cobra.Command) known {
	out := known{}
	for _, s := range Settings(root) {
		out[s.Flag] = append(out[s.Flag], s.Commands...)
	}
	return out
}

// KnownVariables says of a variable whether it is a setting of some command, or is left alone.
func KnownVariables(root *cobra.Command) func(name string) bool {
	names := knownSettings(root).variables()
	return func(name string) bool { return names[name] || leftAlone(name, nil) }
}

func (k known) variables() map[string]bool {
	out := map[string]bool{}
	for flag := range k {
		out[EnvName(flag)] = true
	}
	return out
}

// bare are the names of all variables without the prefix, sorted.
func (k known) bare() []string {
	var out []string
	for name := range k.variables() {
		out = append(out, strings.TrimPrefix(name, envPrefix))
	}
	slices.Sort(out)
	return out
}

// refuseVariables are the faults of an environment: variables with the prefix that are no setting
// of any command. Those of other commands are fine, since processes share environments.
func (k known) refuseVariables(env map[string]string) []error {
	names := k.variables()
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if names[name] || leftAlone(name, env) {
			continue
		}
		hint := ""
		if near := nearest(strings.TrimPrefix(name, envPrefix), k.bare()); near != "" {
			hint = "; did you mean " + envPrefix + near + "?"
		}
		faults = append(faults, fmt.Errorf("unknown environment variable %s%s", name, hint))
	}
	return faults
}

// leftAlone says that a variable is none of this program's, in spite of its name.
func leftAlone(name string, env map[string]string) bool {
	if name == activeHelp || ownTests[name] || slices.ContainsFunc(ownTestPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return true
	}
	// A pod has variables for each Service of its namespace, such as this prefix and
	// QUEUE_SERVICE_HOST, QUEUE_PORT and QUEUE_PORT_7442_TCP_ADDR for deltaplane-queue.
	for at := range name {
		service, rest := name[:at], name[at:]
		if rest != "_PORT" && !strings.HasPrefix(rest, "_PORT_") && !strings.HasPrefix(rest, "_SERVICE_") {
			continue
		}
		_, host := env[service+"_SERVICE_HOST"]
		_, port := env[service+"_SERVICE_PORT"]
		if host && port {
			return true
		}
	}
	return false
}

// hint says of a key that is none of these flags what may have been meant.
func (k known) hint(key string, flags *pflag.FlagSet) string {
	if of := k[key]; len(of) > 0 {
		return fmt.Sprintf(": it is a setting of %q", of[0])
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if settable(f) {
			names = append(names, f.Name)
		}
	})
	if near := nearest(key, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// nearest is the name of the fewest edits away, the first one of several; empty when none is near.
func nearest(name string, names []string) string {
	best, least := "", len(name)/3+1
	for _, other := range names {
		if d := edits(name, other); d < least {
			best, least = other, d
		}
	}
	return best
}

// edits is the number of single characters to insert, delete or replace that make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
