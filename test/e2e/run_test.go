//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAReportSaysHowASpecEnded(t *testing.T) {
	t.Parallel()
	const text = `[{"SpecReports": [
		{"ContainerHierarchyTexts": null, "LeafNodeText": "", "State": "passed"},
		{"ContainerHierarchyTexts": ["[sig] Job"], "LeafNodeText": "works", "State": "passed"},
		{"ContainerHierarchyTexts": ["[sig] Job"], "LeafNodeText": "fails", "State": "timedout",
		 "Failure": {"Message": "A suite timeout occurred", "Location": {"FileName": "/src/job.go", "LineNumber": 12}},
		 "AdditionalFailures": [{"State": "failed", "Failure": {"Message": "no\n  pods", "Location": {"FileName": "/src/job.go", "LineNumber": 15}}}]},
		{"ContainerHierarchyTexts": ["[sig] Job"], "LeafNodeText": "skips", "State": "skipped"}]}]`
	for name, want := range map[string]result{
		"[sig] Job works": {Passed: true},
		"[sig] Job fails": {Why: "timedout at job.go:15: no pods"},
		"[sig] Job skips": {Why: "skipped at :0: "},
	} {
		want.Name = name
		if got, err := read([]byte(text), name); err != nil || got != want {
			t.Errorf("read(%s) = %+v, %v, want %+v", name, got, err, want)
		}
	}
	for _, bad := range []string{text, `{`, `[]`} {
		if got, err := read([]byte(bad), "[sig] Job"); err == nil {
			t.Errorf("read of a spec that is not in it = %+v, want an error", got)
		}
	}
}

func TestASerialSpecRunsAloneAfterTheOthers(t *testing.T) {
	t.Parallel()
	kept, err := openResults(filepath.Join(t.TempDir(), "results"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	var mu sync.Mutex
	var order []string
	together := make(chan struct{})
	var out bytes.Buffer
	failed, err := runSpecs(t.Context(), []string{"x [Serial]", "a", "b"}, kept, 2, &out, func(_ context.Context, name string) result {
		if !alone(name) {
			mu.Lock()
			order = append(order, name)
			if len(order) == 2 {
				close(together)
			}
			mu.Unlock()
			<-together // neither ends before the other runs
			return result{Name: name, Passed: true}
		}
		order = append(order, name)
		return result{Name: name, Why: "no node"}
	})
	if err != nil || failed != 1 {
		t.Errorf("runSpecs() = %d, %v, want 1 failed", failed, err)
	}
	if len(order) != 3 || order[2] != "x [Serial]" {
		t.Errorf("the order is %q, want the serial one last", order)
	}
	for _, want := range []string{"[ 3/3] FAILED", "no node", "2 of 3 specs passed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the progress lacks %q:\n%s", want, &out)
		}
	}
}

func TestAnInterruptedSpecHasNoResult(t *testing.T) {
	t.Parallel()
	kept, err := openResults(filepath.Join(t.TempDir(), "results"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	ctx, cancel := context.WithCancel(t.Context())
	var ran []string
	_, err = runSpecs(ctx, []string{"a", "b", "c [Serial]"}, kept, 1, &bytes.Buffer{}, func(_ context.Context, name string) result {
		if ran = append(ran, name); name == "b" {
			cancel()
		}
		return result{Name: name, Passed: name == "a"}
	})
	if !errors.Is(err, context.Canceled) || !slices.Equal(ran, []string{"a", "b"}) {
		t.Errorf("%q ran, ending with %v, want a and b and that it was interrupted", ran, err)
	}
	for name, want := range map[string]bool{"a": true, "b": false, "c [Serial]": false} {
		if _, has := kept.of(name); has != want {
			t.Errorf("%s has a result: %v, want %v", name, has, want)
		}
	}
}

// suiteOf writes a program that plays the suite.
func suiteOf(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "suite")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestASuiteThatWritesNoReportHasFailedTheSpec(t *testing.T) {
	t.Parallel()
	files := filepath.Join(t.TempDir(), "spec")
	// That of an earlier run would be taken for this one's.
	if err := os.WriteFile(files+".json", []byte(`[{"SpecReports": [{"LeafNodeText": "works", "State": "passed"}]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runSpec(t.Context(), suiteOf(t, "echo no cluster; exit 3"), "none", files, "works", time.Minute)
	if got.Passed || !strings.Contains(got.Why, "exit status 3") {
		t.Errorf("runSpec() = %+v, want a failure with exit status 3", got)
	}
	if log, err := os.ReadFile(files + ".log"); err != nil || string(log) != "no cluster\n" {
		t.Errorf("the log is %q, %v", log, err)
	}
}
