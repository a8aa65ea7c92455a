package show

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
)

// none stands in a custom column of an object that has nothing at its path, as kubectl has it.
const none = "<none>"

// parsePath parses one path as kubectl takes it: with or without braces and the first dot.
func parsePath(text string) (*jsonpath.JSONPath, error) {
	inner := text
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		inner = text[1 : len(text)-1]
	}
	inner = strings.TrimPrefix(inner, ".")
	if inner == "" || strings.ContainsAny(inner, "{}") {
		return nil, fmt.Errorf("path %q: want one path, such as .metadata.name", text)
	}
	if !strings.HasPrefix(inner, "[") {
		inner = "." + inner
	}
	return parseTemplate("{" + inner + "}")
}

// parseTemplate parses text with any number of paths in braces. What an object lacks is nothing.
func parseTemplate(text string) (*jsonpath.JSONPath, error) {
	p := jsonpath.New("output").AllowMissingKeys(true)
	if err := p.Parse(text); err != nil {
		return nil, fmt.Errorf("template %q: %w", text, err)
	}
	return p, nil
}

// decode reads an object as paths take it, with whole numbers as they are.
func decode(payload []byte) (any, error) {
	var content map[string]any
	if err := utiljson.Unmarshal(payload, &content); err != nil {
		return nil, err
	}
	return content, nil
}

// custom are the columns that a user wrote.
type custom struct {
	names []string
	paths []*jsonpath.JSONPath
}

// parseColumns parses columns such as NAME:.metadata.name,NODE:.spec.nodeName.
func parseColumns(text string) (*custom, error) {
	c := &custom{}
	for part := range strings.SplitSeq(text, ",") {
		name, path, ok := strings.Cut(part, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("column %q: want NAME:PATH", part)
		}
		p, err := parsePath(path)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", part, err)
		}
		c.names, c.paths = append(c.names, name), append(c.paths, p)
	}
	return c, nil
}

func (c *custom) cells(payload []byte) ([]string, error) {
	content, err := decode(payload)
	if err != nil {
		return nil, err
	}
	cells := make([]string, len(c.paths))
	for i, path := range c.paths {
		found, err := path.FindResults(content)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", c.names[i], err)
		}
		var values []string
		for _, results := range found {
			for j := range results {
				var text bytes.Buffer
				if err := path.PrintResults(&text, results[j:j+1]); err != nil {
					return nil, fmt.Errorf("column %q: %w", c.names[i], err)
				}
				values = append(values, Printable(text.String()))
			}
		}
		if cells[i] = none; len(values) > 0 {
			cells[i] = strings.Join(values, ",")
		}
	}
	return cells, nil
}

// expressions are the formats that take one.
var expressions = map[string]func(*Printer, string) error{
	"jsonpath": func(p *Printer, text string) (err error) {
		p.template, err = parseTemplate(text)
		return err
	},
	"custom-columns": func(p *Printer, text string) (err error) {
		p.custom, err = parseColumns(text)
		return err
	},
}

// express sets the expression of a format that takes one, and reports whether it does.
func (p *Printer) express(format string) (bool, error) {
	name, text, has := strings.Cut(format, "=")
	set := expressions[name]
	if set == nil {
		return false, nil
	}
	p.Format = name
	if !has || text == "" {
		return true, errors.New("an expression must follow, as in " + map[string]string{
			"jsonpath": "jsonpath='{.metadata.name}'", "custom-columns": "custom-columns=NAME:.metadata.name",
		}[name])
	}
	return true, set(p, text)
}
