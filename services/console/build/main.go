// Command build bundles the browser side of the console, services/console/web, into
// services/console/assets, which are committed so that the program builds without Node.
//
//	build          writes the assets
//	build -check   writes nothing, and fails where the assets are not what the sources make
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// limit is how large everything that a browser loads may be together, compressed.
const limit = 150_000

func main() {
	root := flag.String("root", "..", "`folder` of web and assets")
	check := flag.Bool("check", false, "only compare")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	web, assets := filepath.Join(root, "web"), filepath.Join(root, "assets")
	files, err := bundle(web)
	if err != nil {
		return err
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		size := compressed(files[name])
		fmt.Printf("%-24s %8d bytes %8d compressed\n", name, len(files[name]), size)
		if name != notices {
			total += size
		}
	}
	fmt.Printf("%-24s %23d compressed, of at most %d\n", "together", total, limit)
	if total > limit {
		return fmt.Errorf("the console has %d bytes compressed, more than %d", total, limit)
	}
	if check {
		return compare(assets, files)
	}
	return write(assets, files)
}

// compressed is the length of what a server sends that compresses.
func compressed(text []byte) int {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	_, _ = w.Write(text)
	_ = w.Close()
	return out.Len()
}

// write replaces the folder: a file that is made no more goes.
func write(dir string, files map[string][]byte) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compare names every file that differs, is missing or is too many.
func compare(dir string, files map[string][]byte) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		committed, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Equal(committed, files[name]) {
			errs = append(errs, fmt.Errorf("%s is not what the sources make: run make console", filepath.Join(dir, name)))
		}
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if _, made := files[e.Name()]; !made {
			errs = append(errs, fmt.Errorf("%s is made of nothing: run make console", filepath.Join(dir, e.Name())))
		}
	}
	return cmp.Or(errors.Join(errs...), err)
}
