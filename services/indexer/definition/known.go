package definition

import (
	"fmt"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// This file finds out what an expression does on every object. All that is known
// of an object is the metadata, which the API server keeps to these fields.
var metadataFields = map[string]*cel.Type{
	"name": cel.StringType, "generateName": cel.StringType, "namespace": cel.StringType, "selfLink": cel.StringType, "uid": cel.StringType,
	"resourceVersion": cel.StringType, "creationTimestamp": cel.StringType, "deletionTimestamp": cel.StringType, "clusterName": cel.StringType,
	"generation": cel.IntType, "deletionGracePeriodSeconds": cel.IntType,
	"labels": cel.MapType(cel.StringType, cel.StringType), "annotations": cel.MapType(cel.StringType, cel.StringType),
	"ownerReferences": cel.ListType(cel.DynType), "finalizers": cel.ListType(cel.StringType), "managedFields": cel.ListType(cel.DynType),
}

const objectType, metadataType = "deltaplane.Object", "deltaplane.ObjectMeta"

// schema adds the types of an object to a provider's. What it says nothing of may
// be anything.
type schema struct{ types.Provider }

func (s schema) FindStructType(name string) (*types.Type, bool) {
	if name == objectType || name == metadataType {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return s.Provider.FindStructType(name)
}

func (s schema) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	t, ok := types.DynType, true
	switch {
	case name == objectType && field == "metadata":
		t = types.NewObjectType(metadataType)
	case name == objectType && (field == "kind" || field == "apiVersion"):
		t = types.StringType
	case name == objectType:
	case name == metadataType:
		t, ok = metadataFields[field]
	default:
		return s.Provider.FindStructFieldType(name, field)
	}
	return &types.FieldType{Type: t}, ok
}

// typed is environment with the types of an object.
var typed = sync.OnceValues(func() (*cel.Env, error) {
	return newEnvironment(func(e *cel.Env) (*cel.Env, error) {
		return cel.CustomTypeProvider(schema{e.CELTypeProvider()})(e)
	}, cel.Variable("object", cel.ObjectType(objectType)))
})

// checkType returns an error for an expression that the types of an object show
// to return no texts. One that does not compile with them tells nothing: maps may
// be read in ways in which structures may not.
func checkType(text string) error {
	env, err := typed()
	if err != nil {
		return fmt.Errorf("CEL environment: %w", err)
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil
	}
	return checkReturned(ast)
}

func checkReturned(ast *cel.Ast) error {
	if t := ast.OutputType(); !returnable(t) {
		return fmt.Errorf("returns %s, want string or list(string)", cel.FormatCELType(t))
	}
	return nil
}

// checkAny evaluates an expression on an object of which nothing but the fields
// of its metadata is known. What it returns then it returns on every object.
func checkAny(eval cel.Program) error {
	none := types.NewStringStringMap(types.DefaultTypeAdapter, nil)
	unsure := false
	metadata := &partial{Mapper: none, unsure: &unsure, find: func(key string) (ref.Val, bool) {
		if _, ok := metadataFields[key]; ok {
			return someValue, true
		}
		return nil, false
	}}
	object := &partial{Mapper: none, unsure: &unsure, find: func(key string) (ref.Val, bool) {
		if key == "metadata" {
			return metadata, true
		}
		return someValue, true
	}}
	out, _, err := eval.Eval(map[string]any{"object": object})
	switch {
	case unsure, err == nil && types.IsUnknown(out):
		return nil
	case err != nil:
		return fmt.Errorf("fails on every object: %w", err)
	}
	if _, err := texts(out); err != nil {
		return fmt.Errorf("on every object, it %w", err)
	}
	return nil
}

// someValue is a value that may be anything, or absent.
var someValue = types.NewUnknown(1, nil)

// partial is a map that knows some of its keys. Whatever else is asked of it is
// noted in unsure: then nothing is known.
type partial struct {
	traits.Mapper
	find   func(string) (ref.Val, bool)
	unsure *bool
}

// Find is part of [traits.Mapper].
func (p *partial) Find(key ref.Val) (ref.Val, bool) {
	if name, ok := key.(types.String); ok {
		return p.find(string(name))
	}
	return someValue, true
}

// Get is part of [traits.Indexer].
func (p *partial) Get(key ref.Val) ref.Val {
	if v, ok := p.Find(key); ok {
		return v
	}
	return types.NewErr("no such key: %v", key)
}

// Contains is part of [traits.Container].
func (p *partial) Contains(key ref.Val) ref.Val {
	if v, ok := p.Find(key); ok {
		return v
	}
	return types.False
}

// Equal is part of [ref.Val].
func (p *partial) Equal(ref.Val) ref.Val {
	*p.unsure = true
	return someValue
}

// Size is part of [traits.Sizer].
func (p *partial) Size() ref.Val {
	*p.unsure = true
	return someValue
}

// Iterator is part of [traits.Iterable].
func (p *partial) Iterator() traits.Iterator {
	*p.unsure = true
	return p.Mapper.Iterator()
}

// ConvertToType is part of [ref.Val].
func (p *partial) ConvertToType(ref.Type) ref.Val {
	*p.unsure = true
	return someValue
}

// Value is part of [ref.Val].
func (p *partial) Value() any {
	*p.unsure = true
	return p.Mapper.Value()
}
