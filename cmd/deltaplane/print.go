package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

var outputs = []string{"table", "wide", "json", "yaml", "name", "keys"}

func checkOutput(format string) error {
	if !slices.Contains(outputs, format) {
		return &usageError{fmt.Errorf("--output %q: want one of %s", format, strings.Join(outputs, ", "))}
	}
	return nil
}

// printJSON writes one document for programs, indented.
func printJSON(out io.Writer, document any) error {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, string(text))
	return err
}

// printer writes objects in one of the formats. Tables and lists are written by flush.
type printer struct {
	out        io.Writer
	format     string
	collection string
	table      table
	columns    []column
	headers    bool
	single     bool // one object was asked for: no list around it
	items      []json.RawMessage
	count      int
	err        error
}

func newPrinter(out io.Writer, format, collection string, noHeaders bool) *printer {
	return &printer{
		out: out, format: format, collection: collection,
		table: table{out: out}, headers: !noHeaders,
	}
}

// add takes one object, and prefix cells for tables (the event type of a watch).
func (p *printer) add(o *indexv1.Object, prefix ...string) {
	p.count++
	switch p.format {
	case "keys":
		p.printf("%s\n", strings.Join(append(prefix, o.GetKey()), " "))
	case "name":
		p.printf("%s\n", strings.Join(append(prefix, p.collection+"/"+o.GetKey()), " "))
	case "json", "yaml":
		p.items = append(p.items, o.GetPayload())
	default:
		p.row(o, prefix)
	}
}

func (p *printer) row(o *indexv1.Object, prefix []string) {
	if p.columns == nil {
		p.columns = columnsOf(o.GetPayload(), p.format == "wide")
		if p.headers {
			var names []string
			if len(prefix) > 0 {
				names = append(names, "EVENT")
			}
			for _, c := range p.columns {
				names = append(names, c.name)
			}
			p.table.row(names)
		}
	}
	cells := slices.Clone(prefix)
	for _, c := range p.columns {
		cells = append(cells, c.cell(o))
	}
	p.table.row(cells)
}

func (p *printer) printf(format string, a ...any) {
	if _, err := fmt.Fprintf(p.out, format, a...); err != nil {
		p.err = err
	}
}

// flush writes what is held back: aligned tables, and JSON and YAML documents.
func (p *printer) flush() error {
	if err := p.table.flush(); err != nil {
		return err
	}
	if p.err != nil || (p.format != "json" && p.format != "yaml") {
		return p.err
	}
	var document []byte
	if p.single && len(p.items) == 1 {
		document = p.items[0]
	} else {
		if p.items == nil {
			p.items = []json.RawMessage{}
		}
		encoded, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": p.items})
		if err != nil {
			return err
		}
		document = encoded
	}
	return p.document(document)
}

func (p *printer) document(document []byte) error {
	if p.format == "yaml" {
		text, err := yaml.JSONToYAML(document)
		if err != nil {
			return err
		}
		_, err = p.out.Write(text)
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, document, "", "  "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err := indented.WriteTo(p.out)
	return err
}

// printMessage writes an answer for programs: one JSON document with proto field names.
func printMessage(out io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, string(text))
	return err
}
