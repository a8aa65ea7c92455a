package deltaplane

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/goldentest"
)

// Programs outside of this repository are written against what client/... exports.
func TestTheExportedNamesOfTheClientAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	of := map[string][]string{} // declarations by folder
	err := filepath.WalkDir("client", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.FileExports(file)
		folder := filepath.ToSlash(filepath.Dir(path))
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.GenDecl:
				if decl.Tok == token.IMPORT {
					continue
				}
			case *ast.FuncDecl:
				if decl.Body = nil; !exportedReceiver(decl) {
					continue
				}
			}
			var text bytes.Buffer
			if err := printer.Fprint(&text, files, decl); err != nil {
				return err
			}
			of[folder] = append(of[folder], strings.ReplaceAll(text.String(), "\n\n", "\n"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, folder := range slices.Sorted(maps.Keys(of)) {
		slices.Sort(of[folder])
		fmt.Fprintf(&out, "=== %s\n%s\n", folder, strings.Join(of[folder], "\n"))
	}
	goldentest.Compare(t, "client-api.txt", out.String())
}

// exportedReceiver reports whether others can name the type whose method it is, if it is one.
func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	of := f.Recv.List[0].Type
	for {
		switch x := of.(type) {
		case *ast.StarExpr:
			of = x.X
		case *ast.IndexExpr:
			of = x.X
		case *ast.IndexListExpr:
			of = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}
