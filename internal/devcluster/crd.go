package devcluster

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

// crdFinalizer holds a deleted CRD until its objects are gone.
const crdFinalizer = "customresourcecleanup.apiextensions.k8s.io"

// crd is the part of a CustomResourceDefinition that serving needs. Schemas are
// accepted and not enforced: fields of custom resources are neither pruned nor checked.
type crd struct {
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

func crdResource() *resource {
	return &resource{
		group: "apiextensions.k8s.io", version: "v1", plural: "customresourcedefinitions", singular: "customresourcedefinition",
		kind: "CustomResourceDefinition", shortNames: []string{"crd", "crds"}, categories: []string{"api-extensions"},
		hasStatus: true, hasGeneration: true, needsVersion: true,
		make:          newUnstructured,
		nameFormat:    validation.NameIsDNSSubdomain,
		validate:      validateCRD,
		prepareCreate: func(o apiObject) { o.SetFinalizers(append(o.GetFinalizers(), crdFinalizer)) },
		copyStatus:    copyField("status"),
		copySpec:      copyField("spec"),
		columns: []column{nameColumn, {
			TableColumnDefinition: metav1.TableColumnDefinition{Name: "Created At", Type: "date"},
			value:                 func(o apiObject) any { return o.GetCreationTimestamp().UTC().Format(time.RFC3339) },
		}},
	}
}

func newUnstructured() apiObject { return &unstructured.Unstructured{Object: map[string]any{}} }

func copyField(name string) func(dst, src apiObject) {
	return func(dst, src apiObject) {
		to, from := dst.(*unstructured.Unstructured).Object, src.(*unstructured.Unstructured).Object
		if v, ok := from[name]; ok {
			to[name] = runtime.DeepCopyJSONValue(v)
		} else {
			delete(to, name)
		}
	}
}

// copyAllBut copies every field of a custom resource but metadata and status.
func copyAllBut(dst, src apiObject) {
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

func parseCRD(obj apiObject) (crd, error) {
	var d crd
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, &d)
	return d, err
}

func validateCRD(obj apiObject) field.ErrorList {
	path := field.NewPath("spec")
	d, err := parseCRD(obj)
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

// establish fills the names and the status of an accepted CRD.
func (g *registry) establish(obj apiObject) error {
	d, err := parseCRD(obj)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if r := g.get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && !r.custom {
		return apierrors.NewForbidden(crdResource().groupResource(), obj.GetName(), fmt.Errorf("%s is a built-in resource", r.id()))
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

// serve begins to serve what a stored CRD defines. Only the storage version is served.
func (g *registry) serve(obj apiObject) error {
	d, err := parseCRD(obj)
	if err != nil {
		return err
	}
	n := d.Spec.Names
	r := &resource{
		group: d.Spec.Group, plural: n.Plural, singular: n.Singular, kind: n.Kind, shortNames: n.ShortNames, categories: n.Categories,
		namespaced: d.Spec.Scope == "Namespaced", custom: true, hasGeneration: true, needsVersion: true,
		make: newUnstructured, nameFormat: validation.NameIsDNSSubdomain,
		copyStatus: copyField("status"), copySpec: copyAllBut,
		columns: []column{nameColumn},
	}
	for _, v := range d.Spec.Versions {
		if !v.Storage {
			continue
		}
		r.version, r.hasStatus = v.Name, v.Subresources.Status != nil
		for _, c := range v.Columns {
			r.columns = append(r.columns, pathColumn(c.Name, c.Type, c.JSONPath, int32(c.Priority)))
		}
	}
	if r.hasStatus {
		// Without a status sub-resource, status is a field like any other.
		r.prepareCreate = func(o apiObject) { delete(o.(*unstructured.Unstructured).Object, "status") }
	} else {
		r.copySpec = copyAll
	}
	if len(r.columns) == 1 {
		r.columns = append(r.columns, ageColumn)
	}
	if old := g.get(r.id()); old != nil && old.version == r.version && equality.Semantic.DeepEqual(old.shortNames, r.shortNames) &&
		old.hasStatus == r.hasStatus && len(old.columns) == len(r.columns) && old.kind == r.kind {
		return nil
	}
	g.add(r)
	return nil
}

func copyAll(dst, src apiObject) {
	copyAllBut(dst, src)
	copyField("status")(dst, src)
}

// pathColumn is a printer column of a CRD; only plain dotted paths are followed.
func pathColumn(name, kind, path string, priority int32) column {
	keys := strings.Split(strings.TrimPrefix(path, "."), ".")
	return column{
		TableColumnDefinition: metav1.TableColumnDefinition{Name: name, Type: kind, Priority: priority},
		value: func(o apiObject) any {
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

// defined is the resource that a CRD defines, or nil while it is not served.
func (g *registry) defined(obj apiObject) *resource {
	d, err := parseCRD(obj)
	if err != nil {
		return nil
	}
	if r := g.get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && r.custom {
		return r
	}
	return nil
}
