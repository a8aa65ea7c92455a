//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
)

// writeTable writes the results of all specs as a page.
func writeTable(cfg config, every []string, results *results, version string) error {
	return os.WriteFile(cfg.table, []byte(table(every, results, version, cfg.gateway)), 0o644)
}

func table(every []string, results *results, version string, gateway bool) string {
	through, by := "", "`make e2e-all`"
	if gateway {
		through, by = " The specs call the gateway in place of the API server.", "`make e2e-gateway`"
	}
	var rows strings.Builder
	passed := 0
	for _, name := range every {
		word, seconds, why := "not run", "", ""
		if got, has := results.of(name); has {
			seconds = fmt.Sprintf("%.0f", got.Seconds)
			if word = "passed"; got.Passed {
				passed++
			} else {
				word, why = "failed", got.Why
			}
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", escape(name), word, seconds, escape(why))
	}
	return fmt.Sprintf(`# What upstream's end-to-end suite says

%d of %d specs of Jobs and of taint eviction pass on Deltaplane's controllers and node agent: Kubernetes %s, containerd, pods on
the node's network. A spec whose feature is missing has failed.%s %s wrote this page.

| Spec | Result | Seconds | Why |
|---|---|---|---|
%s`, passed, len(every), version, through, by, rows.String())
}

// escape is a text for a cell.
func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
