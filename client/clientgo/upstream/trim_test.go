package upstream

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// trim removes benchmarks, examples and some functions from a file, and the imports that nothing
// needs then. It returns the names of all tests, also of those removed.
func trim(name string, text []byte, remove func(function string) bool) (out []byte, tests []string, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	var cuts []ast.Node
	file.Decls = slices.DeleteFunc(file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil {
			return false
		}
		drop := strings.HasPrefix(f.Name.Name, "Benchmark") || strings.HasPrefix(f.Name.Name, "Example") || remove(f.Name.Name)
		if strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
			tests = append(tests, f.Name.Name)
		}
		if drop {
			cuts = append(cuts, f)
		}
		return drop
	})
	file.Comments = slices.DeleteFunc(file.Comments, func(c *ast.CommentGroup) bool {
		return slices.ContainsFunc(cuts, func(n ast.Node) bool { return c.Pos() >= n.Pos() && c.End() <= n.End() })
	})
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.IMPORT {
			continue
		}
		g.Specs = slices.DeleteFunc(g.Specs, func(s ast.Spec) bool {
			i := s.(*ast.ImportSpec) //nolint:errcheck,forcetypeassert // of an import declaration
			if i.Name != nil {
				return i.Name.Name != "." && !used[i.Name.Name]
			}
			full, _ := strconv.Unquote(i.Path.Value)
			// The last element may be the package's name or its major version.
			return !used[path.Base(full)] && !used[path.Base(path.Dir(full))]
		})
	}
	var b bytes.Buffer
	err = format.Node(&b, files, file)
	return b.Bytes(), tests, err
}
