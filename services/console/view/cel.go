package view

import (
	"fmt"
	"sync"

	"cel.dev/cel-go/cel"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/deltaplane/deltaplane/internal/expr"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

const (
	// maxExpression is how long an expression may be, in bytes.
	maxExpression = 4 << 10
	// maxCost is what an expression may cost for one object, in CEL's units.
	maxCost = 20_000
	// maxNesting is of comprehensions.
	maxNesting = 2
)

// environment is what expressions are checked in: those of declared indexes, with comparisons of
// numbers of all kinds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return expr.Environment(maxExpression, maxNesting, cel.Variable("object", cel.DynType), cel.CrossTypeNumericComparisons(true))
})

// filter is an expression that objects must fulfil.
type filter struct{ program cel.Program }

// compile makes a filter of an expression; nil of an empty one.
func compile(text string) (*filter, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // nothing is asked for
	}
	expr.Compiling.Lock()
	defer expr.Compiling.Unlock()
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("console: CEL: %w", err)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, rpc.InvalidArgument("cel", "does not compile: "+err.Error())
	}
	if err := expr.CheckPatterns(ast); err != nil {
		return nil, rpc.InvalidArgument("cel", err.Error())
	}
	if out := ast.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, rpc.InvalidArgument("cel", fmt.Sprintf("is a %s, want a bool", out))
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, rpc.InvalidArgument("cel", "does not compile: "+err.Error())
	}
	return &filter{program}, nil
}

// takes reports whether an object fulfils the expression; ok is false where it fails on it.
func (f *filter) takes(payload []byte) (yes, ok bool) {
	var object map[string]any
	if utiljson.Unmarshal(payload, &object) != nil {
		return false, false
	}
	out, _, err := f.program.Eval(map[string]any{"object": object})
	if err != nil {
		return false, false
	}
	yes, ok = out.Value().(bool)
	return yes, ok
}
