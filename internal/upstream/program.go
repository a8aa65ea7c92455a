// Package upstream compiles tests of other modules, from the module cache, against code of ours.
// They are patched in a temporary folder; none of them is kept in this repository.
package upstream

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Patch changes the text of a file, everywhere where it is; it must be there. With Until set, what
// is between goes too.
type Patch struct{ Old, Until, New string }

func (p Patch) apply(text string) (string, bool) {
	if p.Until == "" {
		return strings.ReplaceAll(text, p.Old, p.New), strings.Contains(text, p.Old)
	}
	var changed strings.Builder
	found := false
	for {
		before, rest, began := strings.Cut(text, p.Old)
		_, after, ended := strings.Cut(rest, p.Until)
		if !began || !ended {
			return changed.String() + text, found
		}
		changed.WriteString(before + p.New)
		text, found = after, true
	}
}

// Moved makes a file one of another package.
func Moved(from, to string) Patch {
	return Patch{Old: "\npackage " + from + "\n", New: "\npackage " + to + "\n"}
}

// Source is some test files of a module.
type Source struct {
	// Module and From are where they are: "k8s.io/client-go", "tools/cache".
	Module, From string
	// Mod is the folder of the go.mod to compile with; the folder above when empty.
	Mod string
	// Files are by name, with what is changed in each.
	Files map[string][]Patch
	// Edit, where set, changes each file further.
	Edit func(name string, text []byte) ([]byte, error)
}

// Compile compiles the files as a part of a package of the caller's module, in its folder, and
// returns the program. What is wrong fails the test.
func Compile(t testing.TB, s Source, folder string) (program string) {
	t.Helper()
	dir := t.TempDir()
	flags := s.modFile(t, dir)
	from := filepath.Join(s.find(t, flags), s.From)
	into, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	overlay := map[string]map[string]string{"Replace": {}}
	for name := range s.Files {
		patched := filepath.Join(dir, name)
		write(t, patched, s.patched(t, from, name))
		overlay["Replace"][filepath.Join(into, "upstream_"+name)] = patched
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	replaced := filepath.Join(dir, "overlay.json")
	write(t, replaced, text)
	program = filepath.Join(dir, "suite.test")
	run(t, append([]string{"test", "-c", "-vet=off", "-overlay=" + replaced, "-o", program}, append(flags, "./"+folder)...)...)
	return program
}

// CompileInside compiles all tests of the package that the files are of, where they may use what is
// not exported: in a temporary copy of the module that takes its place. They may import packages of
// the caller's module that do not import theirs. The program is in the folder that it has to run
// in.
func CompileInside(t testing.TB, s Source) (program string) {
	t.Helper()
	dir := t.TempDir()
	flags := s.modFile(t, dir)
	module := filepath.Join(dir, "module")
	if err := os.CopyFS(module, os.DirFS(s.find(t, flags))); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(module, s.From)
	for name := range s.Files {
		write(t, filepath.Join(from, name), s.patched(t, from, name))
	}
	run(t, "mod", "edit", "-replace="+s.Module+"="+module, filepath.Join(dir, "go.mod"))
	program = filepath.Join(from, "suite.test")
	run(t, append([]string{"test", "-c", "-vet=off", "-o", program}, append(flags, s.Module+"/"+s.From)...)...)
	return program
}

// modFile copies go.mod and go.sum, as the files may need more of them, and returns the flags that
// have go use the copies.
func (s Source) modFile(t testing.TB, dir string) (flags []string) {
	t.Helper()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(cmp.Or(s.Mod, ".."), name)) //nolint:gosec // of the caller's module
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), text)
	}
	return []string{"-mod=mod", "-modfile=" + filepath.Join(dir, "go.mod")}
}

// find is the folder of the module.
func (s Source) find(t testing.TB, flags []string) string {
	t.Helper()
	return run(t, append([]string{"list", "-m"}, append(flags, "-f", "{{.Dir}}", s.Module)...)...)
}

// patched is the text of a file in a folder, with what is changed.
func (s Source) patched(t testing.TB, from, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(from, name)) //nolint:gosec // of the module cache
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Files[name] {
		changed, found := p.apply(string(text))
		if !found {
			t.Fatalf("%s has no %q to be patched any more", name, p.Old)
		}
		text = []byte(changed)
	}
	if s.Edit != nil {
		if text, err = s.Edit(name, text); err != nil {
			t.Fatal(err)
		}
	}
	return text
}

func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs go and returns what it prints.
func run(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
