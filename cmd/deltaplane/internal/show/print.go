package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

var outputs = []string{"table", "wide", "json", "yaml", "name", "keys"}

// Outputs are the formats that a Printer knows, as shell completion offers them.
func Outputs() []string { return append(slices.Clone(outputs), "jsonpath=", "custom-columns=") }

// CheckOutput refuses a format that a Printer does not know, and an expression that cannot be read.
func CheckOutput(format string) error {
	var p Printer
	switch takes, err := p.express(format); {
	case err != nil:
		return &cli.UsageError{Err: fmt.Errorf("--output %s: %w", p.Format, err)}
	case !takes && !slices.Contains(outputs, format):
		return &cli.UsageError{Err: fmt.Errorf("--output %q: want one of %s", format, strings.Join(Outputs(), ", "))}
	}
	return nil
}

// PrintJSON writes one document for programs, indented.
func PrintJSON(out io.Writer, document any) error {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, string(text))
	return err
}

// Printer writes objects in one of the formats. Tables and lists are written by flush.
type Printer struct {
	out        io.Writer
	Format     string
	collection string
	Table      aligned
	columns    *columns
	// Columns are the printer columns of a custom resource; for tables.
	Columns  []table.Column
	headers  bool
	Single   bool // one object was asked for: no list around it
	Each     bool // a template is applied to each object as it comes, a line each
	custom   *custom
	template *jsonpath.JSONPath
	items    []json.RawMessage
	Count    int
	Err      error
}

// NewPrinter prints objects of a collection in a format that was checked.
func NewPrinter(out io.Writer, format, collection string, noHeaders bool) *Printer {
	p := &Printer{
		out: out, Format: format, collection: collection,
		Table: aligned{out: out}, headers: !noHeaders,
	}
	_, p.Err = p.express(format)
	return p
}

// Add takes one object, and prefix cells for tables (the event type of a watch).
func (p *Printer) Add(o *indexv1.Object, prefix ...string) {
	p.Count++
	switch p.Format {
	case "keys":
		p.Printf("%s\n", strings.Join(append(prefix, o.GetKey()), " "))
	case "name":
		p.Printf("%s\n", strings.Join(append(prefix, p.collection+"/"+o.GetKey()), " "))
	case "json", "yaml":
		p.items = append(p.items, o.GetPayload())
	case "jsonpath":
		if !p.Each {
			p.items = append(p.items, o.GetPayload())
			return
		}
		if err := p.apply(o.GetPayload()); err != nil {
			p.Err = fmt.Errorf("%s: %w", Printable(o.GetKey()), err)
		}
		p.Printf("\n")
	case "custom-columns":
		cells, err := p.custom.cells(o.GetPayload())
		if err != nil {
			p.Err = fmt.Errorf("%s: %w", Printable(o.GetKey()), err)
			return
		}
		p.header(p.custom.names, prefix)
		p.Table.Row(append(slices.Clone(prefix), cells...))
	default:
		if err := p.row(o, prefix); err != nil {
			p.Err = fmt.Errorf("%s: %w", Printable(o.GetKey()), err)
		}
	}
}

// header is the first line of a table.
func (p *Printer) header(names, prefix []string) {
	if !p.headers {
		return
	}
	p.headers = false
	if len(prefix) > 0 {
		names = append([]string{"EVENT"}, names...)
	}
	p.Table.Row(names)
}

// apply writes what the template makes of a JSON document.
func (p *Printer) apply(document []byte) error {
	content, err := decode(document)
	if err != nil {
		return err
	}
	return p.template.Execute(p.out, content)
}

func (p *Printer) row(o *indexv1.Object, prefix []string) error {
	if p.columns == nil {
		var err error
		if p.columns, err = columnsOf(o.GetPayload(), p.Format == "wide", p.Columns); err != nil {
			return err
		}
		p.header(p.columns.names(), prefix)
	}
	cells, err := p.columns.cells(o, time.Now())
	if err == nil {
		p.Table.Row(append(slices.Clone(prefix), cells...))
	}
	return err
}

// Printf writes text between the objects; a fault of the writer is kept for Flush.
func (p *Printer) Printf(format string, a ...any) {
	if _, err := fmt.Fprintf(p.out, format, a...); err != nil {
		p.Err = err
	}
}

// Flush writes what is held back: aligned tables, and JSON and YAML documents.
func (p *Printer) Flush() error {
	if err := p.Table.flush(); err != nil {
		return err
	}
	if p.Err != nil || p.Each || p.Format != "json" && p.Format != "yaml" && p.Format != "jsonpath" {
		return p.Err
	}
	var document []byte
	if p.Single && len(p.items) == 1 {
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
	return p.Document(document)
}

// Document prints one JSON document in the format.
func (p *Printer) Document(document []byte) error {
	if p.template != nil {
		return p.apply(document)
	}
	if p.Format == "yaml" {
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

// PrintMessage writes an answer for programs: one JSON document with proto field names.
func PrintMessage(out io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, string(text))
	return err
}

// OrEmpty is the list, empty where it is nil, which JSON shows as [] and not as null.
func OrEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// RegisterOutput adds -o to commands that print a table for people and JSON for programs.
func RegisterOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "`format`: table or json")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		if *output != "table" && *output != "json" {
			return &cli.UsageError{Err: fmt.Errorf("--output %q: want table or json", *output)}
		}
		return check(cmd, a)
	}
}
