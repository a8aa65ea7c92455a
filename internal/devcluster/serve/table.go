package serve

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// newTableView renders objects as the rows kubectl prints. Only the first table of a
// watch carries the columns.
func newTableView(r *kinds.Resource, items []*store.Object, include metav1.IncludeObjectPolicy, meta *metav1.ListMeta, header bool) *metav1.Table {
	columns := r.Columns
	if columns == nil {
		columns = []kinds.Column{kinds.NameColumn, kinds.AgeColumn}
	}
	t := &metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}, ListMeta: *meta, Rows: []metav1.TableRow{}}
	if header {
		for _, c := range columns {
			t.ColumnDefinitions = append(t.ColumnDefinitions, c.TableColumnDefinition)
		}
	}
	for _, o := range items {
		row := metav1.TableRow{Cells: make([]any, len(columns))}
		for i, c := range columns {
			row.Cells[i] = c.Value(o.Decoded)
		}
		switch include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			row.Object = runtime.RawExtension{Raw: o.Raw}
		default:
			if raw, err := json.Marshal(partial(o)); err == nil {
				row.Object = runtime.RawExtension{Raw: raw}
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// partial is the metadata of an object alone.
func partial(o *store.Object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
		ObjectMeta: objectMeta(o.Decoded),
	}
}

func objectMeta(o kinds.APIObject) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: o.GetName(), GenerateName: o.GetGenerateName(), Namespace: o.GetNamespace(), UID: o.GetUID(),
		ResourceVersion: o.GetResourceVersion(), Generation: o.GetGeneration(), CreationTimestamp: o.GetCreationTimestamp(),
		DeletionTimestamp: o.GetDeletionTimestamp(), DeletionGracePeriodSeconds: o.GetDeletionGracePeriodSeconds(),
		Labels: o.GetLabels(), Annotations: o.GetAnnotations(), OwnerReferences: o.GetOwnerReferences(),
		Finalizers: o.GetFinalizers(), ManagedFields: o.GetManagedFields(),
	}
}

func partialList(items []*store.Object, meta metav1.ListMeta) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
		ListMeta: meta, Items: make([]metav1.PartialObjectMetadata, 0, len(items)),
	}
	for _, o := range items {
		l.Items = append(l.Items, *partial(o))
	}
	return l
}
