package expr

import (
	"errors"
	"strings"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxText is how long a text may become inside an expression. CEL counts what a
// call has cost when it is over, and one call can make gigabytes of an object
// of ordinary size.
const maxText = 4 << 20

// boundedTexts puts a bound before the functions that multiply lengths.
func boundedTexts() cel.EnvOption {
	s, list := cel.StringType, cel.ListType(cel.StringType)
	return func(e *cel.Env) (*cel.Env, error) {
		format, err := formatter(e)
		if err != nil {
			return nil, err
		}
		for _, option := range []cel.EnvOption{
			cel.Function("format",
				cel.MemberOverload(formatOverload, []*cel.Type{s, cel.ListType(cel.DynType)}, s, cel.BinaryBinding(format))),
			cel.Function("replace",
				cel.MemberOverload("string_replace_string_string", []*cel.Type{s, s, s}, s, cel.FunctionBinding(replace)),
				cel.MemberOverload("string_replace_string_string_int", []*cel.Type{s, s, s, cel.IntType}, s, cel.FunctionBinding(replace))),
			cel.Function("join",
				cel.MemberOverload("list_join", []*cel.Type{list}, s, cel.UnaryBinding(func(l ref.Val) ref.Val { return join(l, types.String("")) })),
				cel.MemberOverload("list_join_string", []*cel.Type{list, s}, s, cel.BinaryBinding(join))),
		} {
			if e, err = option(e); err != nil {
				return nil, err
			}
		}
		return e, nil
	}
}

// replace is text.replace(old, with) or text.replace(old, with, n).
func replace(args ...ref.Val) ref.Val {
	text, ok1 := args[0].(types.String)
	old, ok2 := args[1].(types.String)
	with, ok3 := args[2].(types.String)
	n := types.Int(-1)
	if len(args) > 3 {
		n, _ = args[3].(types.Int)
	}
	if !ok1 || !ok2 || !ok3 {
		return types.NewErr("no such overload")
	}
	found := strings.Count(string(text), string(old))
	if n >= 0 {
		found = min(found, int(n))
	}
	if size := len(text) + found*(len(with)-len(old)); size > maxText {
		return tooLong(size)
	}
	return types.String(strings.Replace(string(text), string(old), string(with), found))
}

// join is list.join(separator).
func join(list, separator ref.Val) ref.Val {
	l, ok := list.(traits.Lister)
	by, isText := separator.(types.String)
	if !ok || !isText {
		return types.NewErr("no such overload")
	}
	var texts []string
	size := 0
	for it := l.Iterator(); it.HasNext() == types.True; {
		s, ok := it.Next().(types.String)
		if !ok {
			return types.NewErr("join: the list does not hold strings")
		}
		if size += len(s) + len(by); size > maxText {
			return tooLong(size)
		}
		texts = append(texts, string(s))
	}
	return types.String(strings.Join(texts, string(by)))
}

const formatOverload = "string_format"

// formatter is the environment's text.format(list), for what is within bounds.
func formatter(e *cel.Env) (func(text, list ref.Val) ref.Val, error) {
	f := e.Functions()["format"]
	if f == nil {
		return nil, errors.New("CEL has no format")
	}
	overloads, err := f.Bindings()
	if err != nil {
		return nil, err
	}
	for _, o := range overloads {
		if o.Operator != formatOverload || o.Function == nil {
			continue
		}
		return func(text, list ref.Val) ref.Val {
			s, ok1 := text.(types.String)
			l, ok2 := list.(traits.Lister)
			if !ok1 || !ok2 {
				return types.NewErr("no such overload")
			}
			if size := printed(l, len(s)); size > maxText {
				return tooLong(size)
			}
			return o.Function(text, list)
		}, nil
	}
	return nil, errors.New("CEL has another format")
}

const (
	// A number is this long when it is printed; one with a fraction may have more
	// than 300 digits before it.
	numberText, fractionText = 64, 512
)

// printed adds to a size what a value takes when it is printed, or at least so
// much that the whole is more than maxText.
func printed(v ref.Val, size int) int {
	each := func(it traits.Iterator, show func(ref.Val)) {
		for size <= maxText && it.HasNext() == types.True {
			size += 2 // what separates them
			show(it.Next())
		}
	}
	switch v := v.(type) {
	case types.String:
		size += 2 * len(v) // hexadecimal
	case types.Bytes:
		size += 2 * len(v)
	case types.Double:
		size += fractionText
	case traits.Mapper:
		each(v.Iterator(), func(key ref.Val) {
			size = printed(key, size)
			if value, ok := v.Find(key); ok && size <= maxText {
				size = printed(value, size)
			}
		})
	case traits.Lister:
		each(v.Iterator(), func(e ref.Val) { size = printed(e, size) })
	default:
		size += numberText
	}
	return size
}

func tooLong(size int) ref.Val {
	return types.NewErr("a text would be %d bytes long or more, at most %d", size, maxText)
}

// CheckPatterns refuses patterns that an object would bring: how long matching
// takes is the product of two lengths, and nothing interrupts it.
func CheckPatterns(a *cel.Ast) error {
	for _, call := range celast.MatchDescendants(celast.NavigateAST(a.NativeRep()), celast.FunctionMatcher("matches")) {
		args := call.AsCall().Args()
		if len(args) == 0 || args[len(args)-1].Kind() != celast.LiteralKind {
			return errors.New("the pattern of matches must be a literal")
		}
	}
	return nil
}
