package job_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// testdata/upstream.txt says for every row of upstream's tests which test repeats it. That it has
// every row is tested in test/kube, which has upstream's source.
func TestEveryTestThatRepeatsARowOfUpstreamExists(t *testing.T) {
	t.Parallel()
	tests := map[string]map[string]bool{}
	for name, folder := range map[string]string{"": ".", "policy.": "policy", "replica.": "../../../core/replica"} {
		readTests(t, name, folder, tests)
	}
	list, err := os.ReadFile("testdata/upstream.txt")
	if err != nil {
		t.Fatal(err)
	}
	repeated := 0
	for i, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, " | ")
		if len(parts) != 3 {
			t.Errorf("line %d has %d parts, want 3", i+1, len(parts))
			continue
		}
		if reason, ok := strings.CutPrefix(parts[2], "reason:"); ok {
			if reason == "" {
				t.Errorf("line %d gives no reason", i+1)
			}
			continue
		}
		repeated++
		test, row, hasRow := strings.Cut(parts[2], "/")
		switch texts, ok := tests[test]; {
		case !ok:
			t.Errorf("line %d: there is no test %s", i+1, test)
		case hasRow && !texts[row]:
			t.Errorf("line %d: %s has no row %q", i+1, test, row)
		}
	}
	if repeated == 0 {
		t.Error("the list is empty")
	}
}

// readTests adds the tests of a folder by name, each with the texts in it, among which are the
// names of its rows.
func readTests(t *testing.T, prefix, folder string, into map[string]map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			texts := map[string]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						texts[text] = true
					}
				}
				return true
			})
			into[prefix+f.Name.Name] = texts
		}
	}
}
