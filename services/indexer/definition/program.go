package definition

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
)

// Bounds of an expression. Costs are CEL's, about one for each step; a step
// takes some 0.1 us.
const (
	// MaxDeclaredCost is the worst cost that may be expected of an expression when
	// it is declared, if each list of the object had assumedSize elements.
	MaxDeclaredCost = 10_000_000
	// MaxCost is what one evaluation may cost; beyond it the object is an error.
	MaxCost = 100_000
	// MaxTime is how long one evaluation may take. It is far above what MaxCost
	// allows: replicas must agree on values whatever their speed.
	MaxTime = 2 * time.Second

	maxNesting  = 3 // of comprehensions
	assumedSize = 100
)

// Program finds the values of one definition. It is immutable and safe for
// concurrent use.
type Program struct {
	def   Definition
	eval  cel.Program // nil unless the definition has an expression
	field string
}

// Compile makes a definition ready to be used. Of those that [FromProto] has
// accepted, only expressions can fail: they do not parse, do not type-check,
// may cost more than [MaxDeclaredCost], or return neither a string nor a list
// of strings.
func Compile(d Definition) (*Program, error) {
	p := &Program{def: d}
	switch {
	case !d.Field.IsZero():
		p.field = d.Field.String()
	case d.CEL != "":
		eval, err := compile(d.CEL)
		if err != nil {
			return nil, err
		}
		// No path has a space outside its quotes, so the name is no path's.
		p.eval, p.field = eval, d.Source()
	}
	return p, nil
}

// Definition is what the program was compiled from.
func (p *Program) Definition() Definition { return p.def }

// Path is the path of a field index; zero for the others.
func (p *Program) Path() Path { return p.def.Field }

// Evaluates reports whether the program is an expression, which needs the whole
// object decoded.
func (p *Program) Evaluates() bool { return p.eval != nil }

// Field names the values among the facts of an object; programs of equal
// sources share it. It is empty when they are found in labels or owners.
func (p *Program) Field() string { return p.field }

// environment is what expressions are checked in: the standard library with
// its macros, strings, and optional values, which make `object.?spec.?nodeName`
// possible.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("object", cel.DynType),
		cel.OptionalTypes(),
		ext.Strings(),
		boundedTexts(),
		cel.ParserRecursionLimit(100),
		cel.ParserExpressionSizeLimit(MaxExpressionBytes),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	)
})

// compiling is held while an expression is compiled: the checkers of cel-go 0.33 share what they write.
var compiling sync.Mutex

func compile(text string) (cel.Program, error) {
	compiling.Lock()
	defer compiling.Unlock()
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("does not compile: %w", err)
	}
	if t := ast.OutputType(); !returnable(t) {
		return nil, fmt.Errorf("returns %s, want string or list(string)", cel.FormatCELType(t))
	}
	if err := checkPatterns(ast); err != nil {
		return nil, err
	}
	estimate, err := env.EstimateCost(ast, estimator{})
	if err != nil {
		return nil, fmt.Errorf("cost cannot be told: %w", err)
	}
	if estimate.Max > MaxDeclaredCost {
		return nil, fmt.Errorf("may cost %s, at most %d", costText(estimate.Max), MaxDeclaredCost)
	}
	prog, err := env.Program(ast, cel.CostLimit(MaxCost), cel.InterruptCheckFrequency(100), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("does not compile: %w", err)
	}
	return prog, nil
}

func costText(c uint64) string {
	if c == math.MaxUint64 {
		return "without bound"
	}
	return fmt.Sprint(c)
}

// returnable reports whether values of the type are strings, lists of them, or
// may turn out to be.
func returnable(t *cel.Type) bool {
	scalar := func(t *cel.Type) bool {
		return t.IsExactType(cel.StringType) || t.IsExactType(cel.DynType) || t.Kind() == cel.TypeParamKind
	}
	switch {
	case t.IsAssignableType(cel.OptionalType(cel.DynType)) && t.Kind() == cel.OpaqueKind && len(t.Parameters()) == 1:
		return returnable(t.Parameters()[0])
	case t.Kind() == cel.ListKind && len(t.Parameters()) == 1:
		return scalar(t.Parameters()[0])
	}
	return scalar(t)
}

// estimator takes every list, map and text of an object as of a size that real
// ones seldom have; the run-time limit is exact.
type estimator struct{}

// EstimateSize is part of [cost.Estimator].
func (estimator) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	if n.ComputedSize() != nil {
		return nil
	}
	return &cost.SizeEstimate{Min: 0, Max: assumedSize}
}

// EstimateCallCost is part of [cost.Estimator].
func (estimator) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// Values are what a document is filed under, sorted, each once. For an
// expression the document is one decoded with whole numbers as int64; for a
// field see [Path.Values]. The values of labels and owners are not in here.
// Errors wrap [ErrValue].
func (p *Program) Values(ctx context.Context, doc any) ([]string, error) {
	if p.eval == nil {
		return p.def.Field.Values(doc)
	}
	// A caller that goes away must not become an error of the object.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), MaxTime)
	defer cancel()
	out, _, err := p.eval.ContextEval(ctx, map[string]any{"object": doc})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	values, err := texts(out)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	return Bound(values)
}

// texts reads the result of an expression: a string, a list of strings, or
// null and an absent optional, which are no values.
func texts(v ref.Val) ([]string, error) {
	switch v := v.(type) {
	case types.String:
		return []string{string(v)}, nil
	case types.Null:
		return nil, nil
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return texts(v.GetValue())
	case traits.Lister:
		size, ok := v.Size().(types.Int)
		if !ok {
			return nil, errors.New("returned a list without a length")
		}
		if size > 100*MaxValues {
			return nil, fmt.Errorf("returned a list of %d", size)
		}
		values := make([]string, 0, size)
		for i := range size {
			s, ok := v.Get(i).(types.String)
			if !ok {
				return nil, fmt.Errorf("returned a list that holds %s, want strings", v.Get(i).Type().TypeName())
			}
			values = append(values, string(s))
		}
		return values, nil
	}
	return nil, fmt.Errorf("returned %s, want a string or a list of strings", v.Type().TypeName())
}
