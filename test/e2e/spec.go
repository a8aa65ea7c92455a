//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// judged are the beginnings of the names of specs that judge what Deltaplane has.
var judged = []string{"[sig-apps] Job ", "[sig-node] NoExecuteTaintManager "}

// beyond are parts of names of such specs that are about a feature gate's alpha of another
// controller, and so neither run nor counted.
var beyond = []string{"gang-eligible"}

// slow are parts of names of specs that wait for two minutes to see that nothing happens, with the
// cluster for themselves. They are not in the choice.
var slow = []string{
	"doesn't evict pod with tolerations", "eventually evict pod with finite tolerations", "removing taint cancels eviction",
	"only evicts pods without tolerations",
}

// chosen says whether a spec is in the choice of those that have to pass.
func chosen(name string) bool {
	return !slices.ContainsFunc(slow, func(part string) bool { return strings.Contains(name, part) })
}

// specsOf asks the suite for its specs and returns the names of those that judge Deltaplane. What
// is said here of specs that are no longer there is an error.
func specsOf(ctx context.Context, suite string) ([]string, error) {
	out, err := exec.CommandContext(ctx, suite, "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-tests: %w", suite, err)
	}
	names := judgedIn(out)
	if len(names) == 0 {
		return nil, fmt.Errorf("%s lists none of the specs %q", suite, judged)
	}
	var gone []error
	for _, part := range slow {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, part) }) {
			gone = append(gone, fmt.Errorf("spec.go speaks of %q, which no spec of the suite has in its name", part))
		}
	}
	return names, errors.Join(gone...)
}

// listed is a line of the list: "    job.go:79: [sig-apps] Job should ...".
var listed = regexp.MustCompile(`^\s+\S+:\d+: (.+)$`)

func judgedIn(list []byte) []string {
	var names []string
	for line := range bytes.Lines(list) {
		found := listed.FindSubmatch(bytes.TrimRight(line, "\n"))
		if found == nil {
			continue
		}
		name := string(found[1])
		ours := slices.ContainsFunc(judged, func(start string) bool { return strings.HasPrefix(name, start) })
		if ours && !slices.ContainsFunc(beyond, func(part string) bool { return strings.Contains(name, part) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// choose returns the specs to run of all there are.
func choose(every []string, cfg config, had *results) []string {
	var wanted []string
	for _, name := range every {
		last, has := had.of(name)
		switch {
		case cfg.focus != nil:
			if !cfg.focus.MatchString(name) {
				continue
			}
		case !cfg.all:
			if !chosen(name) {
				continue
			}
		case has && !cfg.again.asks(last):
			continue
		}
		wanted = append(wanted, name)
	}
	return wanted
}

// alone says whether a spec must have the cluster for itself, by the labels in its name.
func alone(name string) bool {
	return strings.Contains(name, "[Serial]") || strings.Contains(name, "[Disruptive]")
}

// slug is a spec's name as that of a file.
func slug(name string) string {
	return strings.Trim(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(name, "-"), "-")
}
