package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// notices is the file with the licences of what others wrote and the bundle contains.
const notices = "THIRD_PARTY.txt"

// pages are copied as they are.
var pages = []string{"index.html", "icon.svg"}

// bundle makes the files that the server serves. The same sources make the same bytes on every
// machine.
func bundle(web string) (map[string][]byte, error) {
	web, err := filepath.Abs(web)
	if err != nil {
		return nil, err
	}
	result := api.Build(api.BuildOptions{
		AbsWorkingDir:     web,
		EntryPoints:       []string{"src/console.tsx"},
		Outdir:            "out",
		Bundle:            true,
		Metafile:          true,
		MinifyWhitespace:  true,
		MinifyIdentifiers: true,
		MinifySyntax:      true,
		Charset:           api.CharsetUTF8,
		Format:            api.FormatESModule,
		Target:            api.ES2022,
		JSX:               api.JSXAutomatic,
		JSXImportSource:   "preact",
		LegalComments:     api.LegalCommentsNone, // whole licences are in notices
		LogLevel:          api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		return nil, errors.New("esbuild refuses the sources")
	}
	files := map[string][]byte{}
	for _, f := range result.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	for _, name := range pages {
		if files[name], err = os.ReadFile(filepath.Join(web, name)); err != nil {
			return nil, err
		}
	}
	files[notices], err = licences(web, result.Metafile)
	return files, err
}

// licences are those of the packages that the bundle has a part of.
func licences(web, metafile string) ([]byte, error) {
	var meta struct {
		Inputs map[string]struct{} `json:"inputs"`
	}
	if err := json.Unmarshal([]byte(metafile), &meta); err != nil {
		return nil, err
	}
	var packages []string
	for path := range meta.Inputs {
		if i := strings.LastIndex(path, "node_modules/"); i >= 0 {
			parts := strings.SplitN(path[i+len("node_modules/"):], "/", 3)
			name := parts[0]
			if strings.HasPrefix(name, "@") {
				name += "/" + parts[1]
			}
			packages = append(packages, path[:i]+"node_modules/"+name)
		}
	}
	slices.Sort(packages)
	var text strings.Builder
	text.WriteString("The console contains parts of these packages.\n")
	for _, p := range slices.Compact(packages) {
		if err := licence(&text, filepath.Join(web, p)); err != nil {
			return nil, err
		}
	}
	return []byte(text.String()), nil
}

// licence adds what a package says of itself.
func licence(text *strings.Builder, dir string) error {
	var manifest struct{ Name, Version, License string }
	raw, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	fmt.Fprintf(text, "\n%s\n%s %s, %s\n%[1]s\n", strings.Repeat("-", 72), manifest.Name, manifest.Version, manifest.License)
	found, err := filepath.Glob(filepath.Join(dir, "LICEN[CS]E*"))
	if err != nil {
		return err
	}
	if len(found) == 0 && !slices.Contains(standard, manifest.License) {
		return fmt.Errorf("%s has no licence file, and %q is none whose text need not be there", manifest.Name, manifest.License)
	}
	for _, path := range found {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text.WriteString("\n" + strings.TrimSpace(strings.ReplaceAll(string(raw), "\r\n", "\n")) + "\n")
	}
	return nil
}

// standard are licences whose text Deltaplane has in LICENSE already.
var standard = []string{"Apache-2.0", "(Apache-2.0 AND BSD-3-Clause)"}
