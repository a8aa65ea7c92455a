package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/internal/goldentest"
)

// The names of commands and flags, and their defaults, are what scripts and files of settings rely
// on.
func TestTheHelpOfEveryCommandIsTheOneThatIsKept(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	root := newRoot(streams{In: strings.NewReader(""), Out: &all, Err: &all})
	root.InitDefaultHelpCmd()
	var show func(*cobra.Command)
	show = func(c *cobra.Command) {
		fmt.Fprintf(&all, "=== %s\n", c.CommandPath())
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		if c.Flags().Lookup("help-all") != nil {
			fmt.Fprintf(&all, "=== %s --help-all\n", c.CommandPath())
			if err := c.Flags().Set("help-all", "true"); err != nil {
				t.Fatal(err)
			}
			if err := c.Usage(); err != nil {
				t.Fatal(err)
			}
		}
		for _, sub := range c.Commands() {
			show(sub)
		}
	}
	show(root)
	goldentest.Compare(t, "help.txt", all.String())
}
