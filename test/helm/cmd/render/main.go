// Command render writes the files that are made of deploy/chart.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/deltaplane/deltaplane/test/helm/chart"
)

func main() {
	if err := run("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root string) error {
	files, err := chart.Files(root)
	if err != nil {
		return err
	}
	// A template that is gone leaves no file.
	if err := os.RemoveAll(filepath.Join(root, "deploy", "kubernetes")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "deploy", "kubernetes"), 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
