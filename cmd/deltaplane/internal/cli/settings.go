package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ApplySettings fills the flags that were not given on the command line from the environment, given
// as NAME=VALUE, and from the file named by --config. All faults are reported together, each naming
// where the value came from. A variable with this program's prefix and a key that are no setting
// are faults: a misspelt one must not be silently without effect.
func ApplySettings(environment func() []string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if all := cmd.Flags().Lookup(helpAll); all != nil && all.Changed {
			return pflag.ErrHelp // cobra answers it with the command's help
		}
		flags := cmd.Flags()
		env := variables(environment())
		known := knownSettings(cmd.Root())
		faults := known.refuseVariables(env)
		fill := func(f *pflag.Flag, value, source string) {
			if err := flags.Set(f.Name, value); err != nil {
				faults = append(faults, fmt.Errorf("%s: %q is not a value for --%s (%s)", source, value, f.Name, f.Value.Type()))
			}
		}
		flags.VisitAll(func(f *pflag.Flag) {
			if f.Changed || !settable(f) || f.Annotations[NoEnvironment] != nil {
				return
			}
			if value, ok := env[EnvName(f.Name)]; ok {
				fill(f, value, EnvName(f.Name))
			}
		})
		path, err := flags.GetString("config")
		if err == nil && path != "" {
			faults = append(faults, applyFile(path, flags, known, fill)...)
		}
		if err := errors.Join(faults...); err != nil {
			return &UsageError{err}
		}
		return nil
	}
}

// NoEnvironment marks a flag that has no environment variable.
const NoEnvironment = "deltaplane/no-environment"

// EnvName is the environment variable of a flag.
func EnvName(flag string) string {
	return "DELTAPLANE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyFile sets the flags a YAML file names. Keys no flag of the command has are faults.
func applyFile(path string, flags *pflag.FlagSet, known known, fill func(*pflag.Flag, string, string)) []error {
	k := koanf.New("\x00")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return []error{fmt.Errorf("--config %s: %w", path, err)}
	}
	var faults []error
	raw := k.Raw()
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		f := flags.Lookup(key)
		if f == nil || key == "config" || !settable(f) {
			faults = append(faults, fmt.Errorf("%s: unknown key %q%s", path, key, known.hint(key, flags)))
			continue
		}
		if f.Changed {
			continue
		}
		switch v := raw[key].(type) {
		case []any:
			parts := make([]string, len(v))
			for i, p := range v {
				parts[i] = fmt.Sprint(p)
				if _, ok := p.(map[string]any); ok { // a flag that takes it reads it as JSON
					if text, err := json.Marshal(p); err == nil {
						parts[i] = string(text)
					}
				}
			}
			if slice, ok := f.Value.(pflag.SliceValue); ok {
				if err := slice.Replace(parts); err != nil {
					faults = append(faults, fmt.Errorf("%s: %q: %w", path, key, err))
				}
				f.Changed = true
				continue
			}
			faults = append(faults, fmt.Errorf("%s: %q takes one value, not a list", path, key))
		case map[string]any:
			if _, ok := f.Value.(interface{ AcceptsMap() }); ok {
				if text, err := json.Marshal(v); err == nil {
					fill(f, string(text), path+": "+key)
					continue
				}
			}
			faults = append(faults, fmt.Errorf("%s: %q takes a value, not a map", path, key))
		case nil:
		default:
			fill(f, fmt.Sprint(v), path+": "+key)
		}
	}
	return faults
}
