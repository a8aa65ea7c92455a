// Package definition reads, checks and compiles the indexes that callers
// declare: the value of a label, of a path into the object, the UID of owners,
// or a CEL expression.
//
// What can be known without an object is checked when an index is declared, and
// its error names the field of the request. What an object alone can tell (a
// path that meets a string, an expression that fails) is an error of that index
// on that object, and of nothing else.
package definition

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// MaxExpressionBytes is how long the text of an expression may be.
const MaxExpressionBytes = 4096

// Definition says how one index finds the values of an object. Exactly one of
// Label, Field, Owner and CEL is set. Definitions are in canonical form, as
// [FromProto] makes them: equal ones are equal by [Definition.Equal].
type Definition struct {
	// Name is a lower-case DNS label.
	Name string
	// Label is the name of a label.
	Label string
	// Field leads to the values.
	Field Path
	// Owner chooses among owner references.
	Owner *Owner
	// CEL is an expression over `object`.
	CEL string
}

// Owner chooses owner references: all, those of the controller, of one kind.
type Owner struct {
	Controller bool
	Kind       string
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	kindPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,62}$`)
)

// CheckName reports what is wrong with the name of an index.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%.80q is not a lower-case DNS label of at most 63 characters", name)
	}
	return nil
}

// FromProto reads a definition and checks all that can be checked without
// compiling it. field is the place of p in its request, "indexers[0]"; the
// errors are [rpc.FieldError]s below it, joined.
func FromProto(field string, p *indexv1.IndexerDefinition) (Definition, error) {
	d := Definition{Name: p.GetName()}
	var errs []error
	fault := func(name string, err error) {
		if err != nil {
			errs = append(errs, rpc.InvalidField(field+"."+name, err))
		}
	}
	fault("name", CheckName(d.Name))
	switch src := p.GetSource().(type) {
	case *indexv1.IndexerDefinition_Label:
		d.Label = src.Label
		if faults := validation.IsQualifiedName(d.Label); len(faults) > 0 {
			fault("label", fmt.Errorf("%.80q is not the name of a label: %s", d.Label, strings.Join(faults, "; ")))
		}
	case *indexv1.IndexerDefinition_Field:
		var err error
		d.Field, err = ParsePath(src.Field)
		fault("field", err)
	case *indexv1.IndexerDefinition_OwnerUid:
		d.Owner = &Owner{Controller: src.OwnerUid.GetControllerOnly(), Kind: src.OwnerUid.GetKind()}
		if k := d.Owner.Kind; k != "" && !kindPattern.MatchString(k) {
			fault("owner_uid.kind", fmt.Errorf("%.80q is not a kind", k))
		}
	case *indexv1.IndexerDefinition_Cel:
		d.CEL = strings.TrimSpace(src.Cel)
		switch {
		case d.CEL == "":
			fault("cel", errors.New("is empty"))
		case len(d.CEL) > MaxExpressionBytes:
			fault("cel", fmt.Errorf("is %d bytes long, at most %d", len(d.CEL), MaxExpressionBytes))
		}
	default:
		errs = append(errs, rpc.InvalidArgument(field, "has no source: one of label, field, owner_uid and cel is required"))
	}
	return d, errors.Join(errs...)
}

// Proto is the definition as it is declared.
func (d Definition) Proto() *indexv1.IndexerDefinition {
	p := &indexv1.IndexerDefinition{Name: d.Name}
	switch {
	case d.Label != "":
		p.Source = &indexv1.IndexerDefinition_Label{Label: d.Label}
	case !d.Field.IsZero():
		p.Source = &indexv1.IndexerDefinition_Field{Field: d.Field.String()}
	case d.Owner != nil:
		p.Source = &indexv1.IndexerDefinition_OwnerUid{OwnerUid: &indexv1.OwnerSource{ControllerOnly: d.Owner.Controller, Kind: d.Owner.Kind}}
	case d.CEL != "":
		p.Source = &indexv1.IndexerDefinition_Cel{Cel: d.CEL}
	}
	return p
}

// Source says in one line where values come from: "field spec.nodeName". Two
// definitions with equal sources find the same values.
func (d Definition) Source() string {
	switch {
	case d.Label != "":
		return "label " + d.Label
	case !d.Field.IsZero():
		return "field " + d.Field.String()
	case d.Owner != nil:
		text := "owner uid"
		if d.Owner.Controller {
			text += ", controller only"
		}
		if d.Owner.Kind != "" {
			text += ", of kind " + d.Owner.Kind
		}
		return text
	case d.CEL != "":
		return "cel " + d.CEL
	}
	return "nothing"
}

// Equal reports whether two definitions are of one name and find the same
// values.
func (d Definition) Equal(o Definition) bool {
	return d.Name == o.Name && d.Source() == o.Source()
}
