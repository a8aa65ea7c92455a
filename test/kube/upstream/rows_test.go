// Package upstream compares lists of this project with the source of Kubernetes.
package upstream

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// jobFiles are upstream's tests of what the Job controller here does as well.
var jobFiles = []string{
	"job_controller_test.go", "indexed_job_utils_test.go", "pod_failure_policy_test.go", "success_policy_test.go", "backoff_utils_test.go",
}

func TestTheListOfTheJobControllerHasEveryRowOfUpstreamsTests(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(kubernetes(t), "pkg", "controller", "job")
	var want []string
	for _, file := range jobFiles {
		for _, row := range rowsOf(t, filepath.Join(folder, file)) {
			want = append(want, file+" | "+row)
		}
	}
	text, err := os.ReadFile("../../../services/controllers/job/testdata/upstream.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if parts := strings.Split(line, " | "); !strings.HasPrefix(line, "#") && len(parts) == 3 {
			got = append(got, parts[0]+" | "+parts[1])
		}
	}
	for i, row := range got {
		if !slices.Contains(want, row) {
			t.Errorf("upstream has no row %s", row)
		}
		if slices.Contains(got[:i], row) {
			t.Errorf("the list has %s twice", row)
		}
	}
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("the list has no row %s", row)
		}
	}
}

// kubernetes is the folder of the module k8s.io/kubernetes, of the version in go.mod.
func kubernetes(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatalf("download k8s.io/kubernetes: %v\n%s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	return module.Dir
}

// rowsOf are the tests of a file: TestName/row for each key of a table, TestName without a table.
func rowsOf(t *testing.T, path string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		keys := tableKeys(f)
		for _, key := range keys {
			rows = append(rows, f.Name.Name+"/"+key)
		}
		if len(keys) == 0 {
			rows = append(rows, f.Name.Name)
		}
	}
	return rows
}

// tableKeys are the keys of the map that a test names as its table.
func tableKeys(f *ast.FuncDecl) []string {
	var keys []string
	for _, s := range f.Body.List {
		assign, ok := s.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != 1 {
			continue
		}
		name, isName := assign.Lhs[0].(*ast.Ident)
		table, isLiteral := assign.Rhs[0].(*ast.CompositeLit)
		if !isName || !isLiteral || !slices.Contains([]string{"tests", "cases", "testCases"}, name.Name) {
			continue
		}
		for _, e := range table.Elts {
			row, ok := e.(*ast.KeyValueExpr)
			if !ok { // a slice, whose rows have no keys
				continue
			}
			if key, ok := row.Key.(*ast.BasicLit); ok {
				if text, err := strconv.Unquote(key.Value); err == nil {
					keys = append(keys, text)
				}
			}
		}
	}
	return keys
}
