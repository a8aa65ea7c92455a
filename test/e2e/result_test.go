//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestResultsAreFoundAgainAndTheLastOfASpecCounts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results")
	for _, one := range []result{{Name: "a", Why: "too early"}, {Name: "b", Passed: true, Seconds: 2.5}, {Name: "a", Passed: true}} {
		r, err := openResults(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.add(one); err != nil {
			t.Fatal(err)
		}
		if err := r.close(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := openResults(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for name, want := range map[string]result{"a": {Name: "a", Passed: true}, "b": {Name: "b", Passed: true, Seconds: 2.5}} {
		if got, has := r.of(name); !has || got != want {
			t.Errorf("of(%s) = %+v, %v, want %+v", name, got, has, want)
		}
	}
	if _, has := r.of("c"); has {
		t.Error("a spec that never ran has a result")
	}
}

func TestAResultCutOffInTheMiddleIsForgottenAndTheFileGoesOn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results")
	if err := os.WriteFile(path, []byte(`{"Name":"a","Passed":true,"Seconds":1}`+"\n"+`{"Name":"b","Pas`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := openResults(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.add(result{Name: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if r, err = openResults(path); err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for name, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, has := r.of(name); has != want {
			t.Errorf("%s has a result: %v, want %v", name, has, want)
		}
	}
}

func TestTheTableCountsWhatPassedAndSaysWhyOthersDidNot(t *testing.T) {
	t.Parallel()
	r, err := openResults(filepath.Join(t.TempDir(), "results"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for _, one := range []result{{Name: "a", Passed: true, Seconds: 11.6}, {Name: "b", Seconds: 300, Why: "1 | 2"}} {
		if err := r.add(one); err != nil {
			t.Fatal(err)
		}
	}
	page := table([]string{"a", "b", "c"}, r, "v1.2.3", false)
	for _, want := range []string{"\n1 of 3 specs", "Kubernetes v1.2.3", "| a | passed | 12 |  |\n", `| b | failed | 300 | 1 \| 2 |` + "\n", "| c | not run |  |  |\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
