package describe

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// fields are those of an object of any kind, but for what is shown otherwise.
func fields(o gjson.Result) (out []Field) {
	o.ForEach(func(name, value gjson.Result) bool {
		switch name.String() {
		case "apiVersion", "kind", "metadata":
			return true
		case "status":
			value = without(value, "conditions")
		}
		if below := tree(name.String(), value); below != nil {
			out = append(out, *below)
		}
		return true
	})
	return out
}

// without is an object that lacks a field.
func without(o gjson.Result, field string) gjson.Result {
	var parts []string
	o.ForEach(func(name, value gjson.Result) bool {
		if name.String() != field {
			parts = append(parts, name.Raw+":"+value.Raw)
		}
		return true
	})
	return gjson.Parse("{" + strings.Join(parts, ",") + "}")
}

// tree is a value as a field: one line of scalars, and else what is below it; nil of nothing.
func tree(name string, value gjson.Result) *Field {
	switch {
	case value.IsObject():
		f := &Field{Name: name}
		value.ForEach(func(k, v gjson.Result) bool {
			if below := tree(k.String(), v); below != nil {
				f.Below = append(f.Below, *below)
			}
			return true
		})
		if len(f.Below) == 0 {
			return nil
		}
		return f
	case value.IsArray():
		all := value.Array()
		if len(all) == 0 {
			return nil
		}
		if text, ok := scalars(all); ok {
			return &Field{Name: name, Text: text}
		}
		f := &Field{Name: name}
		for i, v := range all {
			label := fmt.Sprint("[", i, "]")
			if called := v.Get("name"); called.Type == gjson.String {
				label = called.Str
				v = without(v, "name")
			}
			if below := tree(label, v); below != nil {
				f.Below = append(f.Below, *below)
			} else {
				f.Below = append(f.Below, Field{Name: label})
			}
		}
		return f
	case value.String() == "":
		return nil
	}
	return &Field{Name: name, Text: value.String()}
}

// scalars is a list on one line, if it has no lists and objects.
func scalars(all []gjson.Result) (string, bool) {
	texts := make([]string, len(all))
	for i, v := range all {
		if v.IsObject() || v.IsArray() {
			return "", false
		}
		texts[i] = v.String()
	}
	return strings.Join(texts, ", "), true
}
