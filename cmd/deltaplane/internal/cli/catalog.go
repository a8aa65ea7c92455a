package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The sections of settings, in the order in which they are shown.
const (
	SectionRun         = "What runs"
	SectionCluster     = "Cluster"
	SectionMirror      = "What is mirrored"
	SectionLog         = "Log (NATS)"
	SectionQueues      = "Queues"
	SectionIndex       = "Index"
	SectionGateway     = "Gateway"
	SectionControllers = "Controllers"
	SectionNodes       = "Nodes"
	SectionAddresses   = "Addresses"
	SectionSecurity    = "Security"
	SectionCalls       = "Calls to services"
	SectionLimits      = "Limits"
	SectionTelemetry   = "Logging and traces"
	sectionOther       = "Other"
)

var sections = []string{
	SectionRun, SectionCluster, SectionMirror, SectionLog, SectionQueues, SectionIndex, SectionGateway, SectionControllers, SectionNodes,
	SectionAddresses, SectionSecurity, SectionCalls, SectionLimits, SectionTelemetry, sectionOther,
}

// sectionKey annotates a flag with its section, essentialKey one that is shown by --help.
const (
	sectionKey   = "deltaplane/section"
	essentialKey = "deltaplane/essential"
)

// Section begins a section of settings; the function it returns ends it. Flags that were added in
// between belong to it, but for those that an inner section has.
func Section(flags *pflag.FlagSet, title string) func() {
	before := map[string]bool{}
	flags.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	return func() {
		flags.VisitAll(func(f *pflag.Flag) {
			if !before[f.Name] && f.Annotations[sectionKey] == nil {
				annotate(f, sectionKey, title)
			}
		})
	}
}

func annotate(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

// SectionOf is the section of a flag.
func SectionOf(f *pflag.Flag) string {
	if title := f.Annotations[sectionKey]; title != nil {
		return title[0]
	}
	return sectionOther
}

// settable says that a flag is a setting, as against one that only asks for something to be shown.
func settable(f *pflag.Flag) bool {
	return f.Name != "help" && f.Name != helpAll && f.Name != "version"
}

// A Setting is one that commands share: a flag of the same name, meaning and default.
type Setting struct {
	Flag     string
	Variable string // empty where it is not read from the environment
	Section  string
	Default  string // empty for the zero value
	Usage    string
	Commands []string // sorted, without the program's name
}

// Settings are those of a command and of all below it, by section and then by name.
func Settings(root *cobra.Command) []Setting {
	type identity struct{ name, usage, def, section string }
	all := map[identity]*Setting{}
	walk(root, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !settable(f) || c != root && root.PersistentFlags().Lookup(f.Name) != nil {
				return
			}
			_, usage := pflag.UnquoteUsage(f)
			id := identity{f.Name, usage, f.DefValue, SectionOf(f)}
			s := all[id]
			if s == nil {
				s = &Setting{Flag: f.Name, Section: id.section, Default: shownDefault(f), Usage: usage}
				if f.Annotations[NoEnvironment] == nil {
					s.Variable = EnvName(f.Name)
				}
				all[id] = s
			}
			path := strings.TrimPrefix(c.CommandPath(), root.Name())
			s.Commands = append(s.Commands, cmp.Or(strings.TrimSpace(path), "all"))
		})
	})
	out := make([]Setting, 0, len(all))
	for _, s := range all {
		slices.Sort(s.Commands)
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Setting) int {
		return cmp.Or(
			cmp.Compare(slices.Index(sections, a.Section), slices.Index(sections, b.Section)),
			cmp.Compare(a.Flag, b.Flag), slices.Compare(a.Commands, b.Commands),
		)
	})
	return out
}

// walk visits a command and all below it.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

// shownDefault is a flag's default as help shows it.
func shownDefault(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "0", "0s", "false":
		return ""
	}
	return strings.Trim(f.DefValue, "[]")
}

// Page is the page of all settings, in Markdown.
func Page(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Settings

This page is made from the code; ` + "`DELTAPLANE_GOLDEN=write go test ./cmd/deltaplane -run Settings`" + ` makes it again.

Every setting is a flag, an environment variable, and the flag's name as a key of the YAML file given with ` + "`--config`" + `. Flags take
precedence over the environment, and the environment over the file. A variable that begins with ` + "`DELTAPLANE_`" + ` and a key that are
no setting are refused by name. A variable of another command is left alone, and so are the variables by which Kubernetes
announces a Service whose name begins with ` + "`deltaplane`" + `, and those of this project's own tests: ` + "`DELTAPLANE_TEST_*`" + `, ` + "`DELTAPLANE_BENCH_*`" + `
and those below.

`)
	for i, name := range slices.Sorted(maps.Keys(ownTests)) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("`" + name + "`")
	}
	b.WriteString(".\n")
	section := ""
	for _, s := range Settings(root) {
		if s.Section != section {
			section = s.Section
			title := section
			if section == sectionOther {
				title = "Of single commands"
			}
			fmt.Fprintf(&b, "\n## %s\n\n| Flag | Variable | Default | Of | What it is |\n|---|---|---|---|---|\n", title)
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s | %s |\n", s.Flag, code(s.Variable), code(s.Default), strings.Join(s.Commands, ", "), cell(s.Usage))
	}
	return b.String()
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell is a text as it may stand in a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "*", `\*`, "<", "&lt;").Replace(text)
}
