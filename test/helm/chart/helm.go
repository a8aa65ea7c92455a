// Package chart renders deploy/chart with Helm's own code, and knows the files that are made of it.
package chart

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	helmcmd "helm.sh/helm/v4/pkg/cmd"
)

// What deploy/kubernetes is rendered for.
const (
	Release     = "deltaplane"
	Namespace   = "deltaplane"
	KubeVersion = "1.36.0"
)

// Helm runs a command of Helm and returns what it prints, which is part of an error too. It is not
// safe for concurrent use: Helm keeps its settings in variables.
func Helm(args ...string) (string, error) {
	var out bytes.Buffer
	quiet := func(bool) { slog.SetDefault(slog.New(slog.DiscardHandler)) }
	cmd, err := helmcmd.NewRootCmd(&out, args, quiet)
	if err != nil {
		return "", fmt.Errorf("helm: %w", err)
	}
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage = true
	if err := cmd.Execute(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w\n%s", args[0], err, out.String())
	}
	return out.String(), nil
}

// Dir is the folder of the chart, below the root of the repository.
func Dir(root string) string { return filepath.Join(root, "deploy", "chart") }

// Template renders the chart with further arguments of "helm template".
func Template(root string, args ...string) (string, error) {
	return Helm(append([]string{"template", Release, Dir(root), "--namespace", Namespace, "--kube-version", KubeVersion}, args...)...)
}

// A Document is one manifest, and the template that it is from.
type Document struct{ Source, Text string }

// Documents takes what "helm template" prints apart.
func Documents(rendered string) []Document {
	var out []Document
	for text := range strings.SplitSeq("\n"+rendered, "\n---\n") {
		rest, is := strings.CutPrefix(strings.TrimLeft(text, "\n"), "# Source: ")
		if !is {
			continue
		}
		source, body, _ := strings.Cut(rest, "\n")
		if body = strings.TrimSpace(body); body != "" {
			out = append(out, Document{Source: filepath.Base(source), Text: body + "\n"})
		}
	}
	return out
}
