package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModuleIsFoundFromWithinFromTheRepositoryAndNotElsewhere(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := Module(filepath.Dir(here))
	repository := filepath.Dir(filepath.Dir(string(want)))
	for _, from := range []string{here, string(want), repository} {
		if got, err := FindModule(from); err != nil || got != want {
			t.Errorf("FindModule(%s) = %s, %v, want %s", from, got, err, want)
		}
	}
	empty := t.TempDir()
	if got, err := FindModule(empty); err == nil || !strings.Contains(err.Error(), empty) {
		t.Errorf("FindModule(%s) = %s, %v, want an error that names the folder", empty, got, err)
	}
}

func TestVersionsAreThoseOfTheModuleFiles(t *testing.T) {
	t.Parallel()
	v, err := Module("..").Versions()
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{v.Kubernetes, v.Etcd, v.Kwok} {
		if !strings.HasPrefix(got, "v") || strings.Count(got, ".") < 2 {
			t.Errorf("a version is %q", got)
		}
	}
	if key := v.Key(); strings.ContainsAny(key, "/ ") || !strings.HasPrefix(key, v.Kubernetes+"-etcd") {
		t.Errorf("Key() = %q", key)
	}
}

func TestRequiredReadsBlocksAndSingleLines(t *testing.T) {
	t.Parallel()
	text := []byte("module m\n\nrequire a.b/one v1.2.3\n\nrequire (\n\ta.b/two v0.4.0 // indirect\n)\n\nreplace a.b/three => a.b/three v9.9.9\n")
	for module, want := range map[string]string{"a.b/one": "v1.2.3", "a.b/two": "v0.4.0", "a.b/three": "", "a.b": ""} {
		if got := required(text, module); got != want {
			t.Errorf("required(%s) = %q, want %q", module, got, want)
		}
	}
}

func TestVersionStampIsWhatKubectlAndTheSuiteRead(t *testing.T) {
	t.Parallel()
	v := Versions{Kubernetes: "v1.36.3", Etcd: "v3.6.8", Kwok: "v0.8.0"}
	for _, p := range append(programs(v), suite(v)...) {
		if p.name != APIServer && p.name != Suite {
			continue
		}
		for _, want := range []string{"gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"} {
			if !strings.Contains(p.ldflags, "version."+want) {
				t.Errorf("the flags %q of %s lack %s", p.ldflags, p.name, want)
			}
		}
	}
}

func TestOurOwnProgramIsBuiltAgainWhenItsSourceIsNewer(t *testing.T) {
	t.Parallel()
	module, bin := t.TempDir(), t.TempDir()
	source := filepath.Join(module, "cmd", "etcd", "main.go")
	if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(file string) os.FileInfo {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	age := write(source).ModTime()
	etcd := program{name: Etcd, pkg: "./cmd/etcd", dir: "."}
	check := func(when string, want bool) {
		t.Helper()
		if got, err := etcd.built(Module(module), bin); err != nil || got != want {
			t.Errorf("%s: built() = %v, %v, want %v", when, got, err, want)
		}
	}
	check("without a program", false)
	binary := filepath.Join(bin, Etcd)
	write(binary)
	for when, offset := range map[string]int{"older than its source": -1, "newer than its source": 1} {
		at := age.AddDate(0, 0, offset)
		if err := os.Chtimes(binary, at, at); err != nil {
			t.Fatal(err)
		}
		check(when, offset > 0)
	}
}
