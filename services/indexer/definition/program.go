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
	"cel.dev/cel-go/interpreter"

	"github.com/deltaplane/deltaplane/internal/expr"
)

// Bounds of expressions. Costs are CEL's, about one for each step; measured, a
// step takes 0.05 to 0.2 us. A map over ten containers costs about 150, with
// has, filter and split 500, one over ten variables of each of them 4,200.
const (
	// MaxDeclaredCost is the worst cost that may be expected of an expression when
	// it is declared, if each list of the object had assumedSize elements.
	MaxDeclaredCost = 10_000_000
	// MaxCost is what one evaluation may cost; beyond it the object is an error.
	// It is about half a millisecond, on the path of every change.
	MaxCost = 5_000
	// MaxCostOfAll is what the expressions of a collection may cost together for
	// one object, by their [Program.Cost]: ten that use all they may.
	MaxCostOfAll = 10 * MaxCost
	// MaxTime is how long one evaluation may take. It is far above what MaxCost
	// allows: replicas must agree on values whatever their speed.
	MaxTime = 2 * time.Second

	maxNesting  = 3 // of comprehensions
	assumedSize = 100
	typicalSize = 10
)

// Program finds the values of one definition. It is immutable and safe for
// concurrent use.
type Program struct {
	def           Definition
	eval          cel.Program // nil unless the definition has an expression
	field         string
	cost, typical uint64
}

// Compile makes a definition ready to be used. Of those that [FromProto] has
// accepted, only expressions can fail: they do not parse, do not type-check,
// may cost more than [MaxDeclaredCost], or return neither a string nor a list
// of strings, or fail, whatever the object is.
func Compile(d Definition) (*Program, error) {
	p := &Program{def: d}
	switch {
	case !d.Field.IsZero():
		p.field = d.Field.String()
	case d.CEL != "":
		if err := p.compile(d.CEL); err != nil {
			return nil, err
		}
		p.field = d.Source() // no path has a space outside its quotes, so the name is no path's
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

// Cost is what the program may cost for one object, if each list of it has no
// more than assumedSize elements, or [MaxCost] when that is less. Only
// expressions cost.
func (p *Program) Cost() uint64 { return min(p.cost, MaxCost) }

// Field names the values among the facts of an object; programs of equal
// sources share it. It is empty when they are found in labels or owners.
func (p *Program) Field() string { return p.field }

// environment is what expressions are checked in.
var environment = sync.OnceValues(func() (*cel.Env, error) { return newEnvironment(cel.Variable("object", cel.DynType)) })

func newEnvironment(more ...cel.EnvOption) (*cel.Env, error) {
	return expr.Environment(MaxExpressionBytes, maxNesting, more...)
}

func (p *Program) compile(text string) error {
	expr.Compiling.Lock()
	defer expr.Compiling.Unlock()
	env, err := environment()
	if err != nil {
		return fmt.Errorf("CEL environment: %w", err)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return fmt.Errorf("does not compile: %w", err)
	}
	if err := errors.Join(checkReturned(ast), expr.CheckPatterns(ast)); err != nil {
		return err
	}
	if err := checkType(text); err != nil {
		return err
	}
	worst, err := env.EstimateCost(ast, estimator{assumedSize})
	if err != nil {
		return fmt.Errorf("cost cannot be told: %w", err)
	}
	typical, err := env.EstimateCost(ast, estimator{typicalSize})
	if err != nil {
		return fmt.Errorf("cost cannot be told: %w", err)
	}
	p.cost, p.typical = worst.Max, typical.Max
	if p.cost > MaxDeclaredCost {
		return fmt.Errorf("may cost %s for lists of %d, at most %d; for lists of %d it may cost %s", costText(p.cost), assumedSize, MaxDeclaredCost, typicalSize, costText(p.typical))
	}
	p.eval, err = env.Program(ast, cel.CostLimit(MaxCost), cel.InterruptCheckFrequency(100), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return fmt.Errorf("does not compile: %w", err)
	}
	return checkAny(p.eval)
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

// estimator takes every list, map and text of an object as of a size at most;
// the run-time limit is exact.
type estimator struct{ size uint64 }

// EstimateSize is part of [cost.Estimator].
func (e estimator) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	if n.ComputedSize() != nil {
		return nil
	}
	return &cost.SizeEstimate{Min: 0, Max: e.size}
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
	if cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && cancelled.Cause == interpreter.CostLimitExceeded {
		err = fmt.Errorf("cost limit exceeded: it may cost %d for one object, and about %s for lists of %d", MaxCost, costText(p.typical), typicalSize)
	}
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
