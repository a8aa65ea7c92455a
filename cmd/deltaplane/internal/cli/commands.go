package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// ContextWithTimeout is the context of a command for a call that may take no longer than timeout.
func ContextWithTimeout(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), timeout)
}

// Args wraps cobra's argument checks so that a wrong number of arguments is a usage error.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return &UsageError{fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// Group makes a command that only holds others show its help, and refuse one it does not hold.
func Group(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, a []string) error {
		if len(a) > 0 {
			err := &UsageError{fmt.Errorf("unknown command %q for %q", a[0], cmd.CommandPath())}
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(a[0]); len(near) > 0 {
				return &HintError{err, fmt.Sprintf("did you mean %q?", near[0])}
			}
			return &HintError{err, fmt.Sprintf("%q lists the commands", cmd.CommandPath()+" --help")}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}
