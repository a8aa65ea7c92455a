package kinds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CRDFinalizer holds a deleted CRD until its objects are gone.
const CRDFinalizer = "customresourcecleanup.apiextensions.k8s.io"

// CRD is the part of a CustomResourceDefinition that serving needs. Schemas are
// accepted and not enforced: fields of custom resources are neither pruned nor checked.
type CRD struct {
	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Plural     string   `json:"plural"`
			Singular   string   `json:"singular"`
			Kind       string   `json:"kind"`
			ListKind   string   `json:"listKind"`
			ShortNames []string `json:"shortNames"`
			Categories []string `json:"categories"`
		} `json:"names"`
		Versions []struct {
			Name         string `json:"name"`
			Served       bool   `json:"served"`
			Storage      bool   `json:"storage"`
			Subresources struct {
				Status *struct{} `json:"status"`
			} `json:"subresources"`
			Columns []struct {
				Name     string `json:"name"`
				Type     string `json:"type"`
				JSONPath string `json:"jsonPath"`
				Priority int64  `json:"priority"`
			} `json:"additionalPrinterColumns"`
		} `json:"versions"`
	} `json:"spec"`
}

func crdResource() *Resource {
	return &Resource{
		Group: "apiextensions.k8s.io", Version: "v1", Plural: "customresourcedefinitions", Singular: "customresourcedefinition",
		Kind: "CustomResourceDefinition", ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		HasStatus: true, HasGeneration: true, NeedsVersion: true,
		New:           newUnstructured,
		NameFormat:    validation.NameIsDNSSubdomain,
		Validate:      validateCRD,
		PrepareCreate: func(o APIObject) { o.SetFinalizers(append(o.GetFinalizers(), CRDFinalizer)) },
		CopyStatus:    copyField("status"),
		CopySpec:      copyField("spec"),
		Columns: []Column{NameColumn, {
			TableColumnDefinition: metav1.TableColumnDefinition{Name: "Created At", Type: "date"},
			Value:                 func(o APIObject) any { return o.GetCreationTimestamp().UTC().Format(time.RFC3339) },
		}},
	}
}

func newUnstructured() APIObject { return &unstructured.Unstructured{Object: map[string]any{}} }

func copyField(name string) func(dst, src APIObject) {
	return func(dst, src APIObject) {
		to, from := dst.(*unstructured.Unstructured).Object, src.(*unstructured.Unstructured).Object
		if v, ok := from[name]; ok {
			to[name] = runtime.DeepCopyJSONValue(v)
		} else {
			delete(to, name)
		}
	}
}

// copyAllBut copies every field of a custom resource but metadata and status.
func copyAllBut(dst, src APIObject) {
	to, from := dst.(*unstructured.Unstructured).Object, src.(*unstructured.Unstructured).Object
	keep := []string{"metadata", "status"}
	for k := range to {
		if !slices.Contains(keep, k) {
			delete(to, k)
		}
	}
	for k, v := range from {
		if !slices.Contains(keep, k) {
			to[k] = runtime.DeepCopyJSONValue(v)
		}
	}
}

// ParseCRD reads what a stored CRD defines.
func ParseCRD(obj APIObject) (CRD, error) {
	var d CRD
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, &d)
	return d, err
}

func validateCRD(obj APIObject) field.ErrorList {
	path := field.NewPath("spec")
	d, err := ParseCRD(obj)
	if err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
	}
	var errs field.ErrorList
	need := func(p *field.Path, v string) {
		if v == "" {
			errs = append(errs, field.Required(p, ""))
		} else if strings.ContainsAny(v, "/ ") {
			errs = append(errs, field.Invalid(p, v, "must be a DNS name"))
		}
	}
	need(path.Child("group"), d.Spec.Group)
	need(path.Child("names", "plural"), d.Spec.Names.Plural)
	need(path.Child("names", "kind"), d.Spec.Names.Kind)
	if d.Spec.Scope != "Namespaced" && d.Spec.Scope != "Cluster" {
		errs = append(errs, field.NotSupported(path.Child("scope"), d.Spec.Scope, []string{"Cluster", "Namespaced"}))
	}
	if want := d.Spec.Names.Plural + "." + d.Spec.Group; obj.GetName() != want {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.GetName(), "must be spec.names.plural+\".\"+spec.group"))
	}
	if strings.HasSuffix(d.Spec.Group, "k8s.io") && obj.GetAnnotations()["api-approved.kubernetes.io"] == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key("api-approved.kubernetes.io"), "protected groups must have approval annotation"))
	}
	stored := 0
	for i, v := range d.Spec.Versions {
		need(path.Child("versions").Index(i).Child("name"), v.Name)
		if v.Storage {
			stored++
		}
	}
	if stored != 1 {
		errs = append(errs, field.Invalid(path.Child("versions"), field.OmitValueType{}, "must have exactly one version marked as storage version"))
	}
	return errs
}

// Establish fills the names and the status of an accepted CRD.
func (g *Registry) Establish(obj APIObject) error {
	d, err := ParseCRD(obj)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if r := g.Get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && !r.Custom {
		return apierrors.NewForbidden(crdResource().GroupResource(), obj.GetName(), fmt.Errorf("%s is a built-in resource", r.ID()))
	}
	u := obj.(*unstructured.Unstructured).Object
	names, _, err := unstructured.NestedMap(u, "spec", "names")
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	fill := func(key, value string) {
		if s, _ := names[key].(string); s == "" {
			names[key] = value
		}
	}
	fill("singular", strings.ToLower(d.Spec.Names.Kind))
	fill("listKind", d.Spec.Names.Kind+"List")
	stored := []any{}
	for _, v := range d.Spec.Versions {
		if v.Storage {
			stored = append(stored, v.Name)
		}
	}
	if err := unstructured.SetNestedMap(u, names, "spec", "names"); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	at := obj.GetCreationTimestamp().UTC().Format(time.RFC3339)
	condition := func(kind, reason, message string) map[string]any {
		return map[string]any{"type": kind, "status": "True", "lastTransitionTime": at, "reason": reason, "message": message}
	}
	u["status"] = map[string]any{
		"acceptedNames":  runtime.DeepCopyJSON(names),
		"storedVersions": stored,
		"conditions": []any{
			condition("NamesAccepted", "NoConflicts", "no conflicts found"),
			condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
		},
	}
	return nil
}

// Serve begins to serve what a stored CRD defines. Only the storage version is served.
func (g *Registry) Serve(obj APIObject) error {
	d, err := ParseCRD(obj)
	if err != nil {
		return err
	}
	n := d.Spec.Names
	r := &Resource{
		Group: d.Spec.Group, Plural: n.Plural, Singular: n.Singular, Kind: n.Kind, ShortNames: n.ShortNames, Categories: n.Categories,
		Namespaced: d.Spec.Scope == "Namespaced", Custom: true, HasGeneration: true, NeedsVersion: true,
		New: newUnstructured, NameFormat: validation.NameIsDNSSubdomain,
		CopyStatus: copyField("status"), CopySpec: copyAllBut,
		Columns: []Column{NameColumn},
	}
	for _, v := range d.Spec.Versions {
		if !v.Storage {
			continue
		}
		r.Version, r.HasStatus = v.Name, v.Subresources.Status != nil
		for _, c := range v.Columns {
			r.Columns = append(r.Columns, pathColumn(c.Name, c.Type, c.JSONPath, int32(c.Priority)))
		}
	}
	if r.HasStatus {
		// Without a status sub-resource, status is a field like any other.
		r.PrepareCreate = func(o APIObject) { delete(o.(*unstructured.Unstructured).Object, "status") }
	} else {
		r.CopySpec = copyAll
	}
	if len(r.Columns) == 1 {
		r.Columns = append(r.Columns, AgeColumn)
	}
	if old := g.Get(r.ID()); old != nil && old.Version == r.Version && equality.Semantic.DeepEqual(old.ShortNames, r.ShortNames) &&
		old.HasStatus == r.HasStatus && len(old.Columns) == len(r.Columns) && old.Kind == r.Kind {
		return nil
	}
	g.add(r)
	return nil
}

func copyAll(dst, src APIObject) {
	copyAllBut(dst, src)
	copyField("status")(dst, src)
}

// pathColumn is a printer column of a CRD; only plain dotted paths are followed.
func pathColumn(name, kind, path string, priority int32) Column {
	keys := strings.Split(strings.TrimPrefix(path, "."), ".")
	return Column{
		TableColumnDefinition: metav1.TableColumnDefinition{Name: name, Type: kind, Priority: priority},
		Value: func(o APIObject) any {
			v, _, err := unstructured.NestedFieldNoCopy(o.(*unstructured.Unstructured).Object, keys...)
			if err != nil || v == nil {
				return ""
			}
			if s, ok := v.(string); ok && kind == "date" {
				if t, err := time.Parse(time.RFC3339, s); err == nil {
					return age(metav1.NewTime(t))
				}
			}
			switch v.(type) {
			case map[string]any, []any:
				return fmt.Sprint(v)
			}
			return v
		},
	}
}

// Defined is the resource that a CRD defines, or nil while it is not served.
func (g *Registry) Defined(obj APIObject) *Resource {
	d, err := ParseCRD(obj)
	if err != nil {
		return nil
	}
	if r := g.Get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && r.Custom {
		return r
	}
	return nil
}
