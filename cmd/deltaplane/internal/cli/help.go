package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpAll is the flag that shows every flag of a command.
const helpAll = "help-all"

// ShortHelp has --help of a command with many flags show those that people need, by section, and
// adds --help-all for the others. Every name must be a flag of the command.
func ShortHelp(cmd *cobra.Command, names ...string) {
	flags := cmd.Flags()
	for _, name := range names {
		annotate(flags.Lookup(name), essentialKey, "true")
	}
	flags.Bool(helpAll, false, "show every flag")
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		all := flags.Changed(helpAll)
		return printUsage(cmd.OutOrStderr(), cmd, all)
	})
}

// Essential says that --help shows a flag, where a command has others.
func Essential(f *pflag.Flag) bool { return f.Annotations[essentialKey] != nil }

func printUsage(w io.Writer, cmd *cobra.Command, all bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	shown, left := map[string]*pflag.FlagSet{}, 0
	add := func(f *pflag.Flag) {
		title := SectionOf(f)
		if shown[title] == nil {
			shown[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
		}
		shown[title].AddFlag(f)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if all || Essential(f) || !settable(f) || f.Name == "config" {
			add(f)
		} else {
			left++
		}
	})
	for _, title := range sections {
		if shown[title] != nil {
			fmt.Fprintf(&b, "\n%s:\n%s", title, shown[title].FlagUsages())
		}
	}
	if left > 0 {
		fmt.Fprintf(&b, "\n%d more flags are shown by --help-all.\n", left)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
