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
	exported(t, func(files *token.FileSet, path string, _ *ast.File, decl ast.Decl) {
		var text bytes.Buffer
		if err := printer.Fprint(&text, files, decl); err != nil {
			t.Fatal(err)
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		of[folder] = append(of[folder], strings.ReplaceAll(text.String(), "\n\n", "\n"))
	})
	var out strings.Builder
	for _, folder := range slices.Sorted(maps.Keys(of)) {
		slices.Sort(of[folder])
		fmt.Fprintf(&out, "=== %s\n%s\n", folder, strings.Join(of[folder], "\n"))
	}
	goldentest.Compare(t, "client-api.txt", out.String())
}

// What the client exports is its own: a contract may grow and change without it, and nobody has to
// import both.
func TestTheClientExportsNoTypesOfContractsAndNoLongResults(t *testing.T) {
	t.Parallel()
	exported(t, func(files *token.FileSet, _ string, file *ast.File, decl ast.Decl) {
		contracts := map[string]bool{} // the names of their packages here
		for _, i := range file.Imports {
			if strings.HasPrefix(i.Path.Value, `"`+module+"proto/") && i.Name == nil {
				t.Errorf("%s: give %s a name", files.Position(i.Pos()), i.Path.Value)
			} else if strings.HasPrefix(i.Path.Value, `"`+module+"proto/") {
				contracts[i.Name.Name] = true
			}
		}
		refuse := func(n ast.Node) {
			ast.Inspect(n, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && contracts[x.Name] {
						t.Errorf("%s: %s.%s is a contract's", files.Position(s.Pos()), x.Name, s.Sel.Name)
					}
				}
				return true
			})
		}
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			refuse(decl.Type)
			if decl.Type.Results.NumFields() > 3 {
				t.Errorf("%s: %s returns %d values: a struct has names for them", files.Position(decl.Pos()), decl.Name.Name, decl.Type.Results.NumFields())
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					refuse(spec.Type)
				case *ast.ValueSpec: // a value may be converted from a contract's, not be one
					if spec.Type != nil {
						refuse(spec.Type)
					}
					for _, v := range spec.Values {
						if _, converted := v.(*ast.CallExpr); !converted {
							refuse(v)
						}
					}
				}
			}
		}
	})
}

// exported visits what the files of client/... export, without bodies and unexported fields.
func exported(t *testing.T, visit func(files *token.FileSet, path string, file *ast.File, decl ast.Decl)) {
	t.Helper()
	err := filepath.WalkDir("client", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (path == "client/internal" || path == "client/controllerruntime/upstream") {
			return fs.SkipDir // nobody outside can import it
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.FileExports(file)
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
			visit(files, path, file, decl)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
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
