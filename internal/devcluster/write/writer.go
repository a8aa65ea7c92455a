package write

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// Options come with every write.
type Options struct {
	DryRun  bool
	Manager string // who writes, for managedFields
	Sub     string // the sub-resource written: "" or "status"
}

// Writer changes what the store holds as the API does: with admission, defaults, validation,
// preconditions and finalizers. Its errors are Status errors.
type Writer struct {
	store *store.Store
	kinds *kinds.Registry
}

// New makes a writer to a store of the served kinds.
func New(s *store.Store, kinds *kinds.Registry) *Writer { return &Writer{store: s, kinds: kinds} }

// nameTries is how often a generated name that is taken is generated again.
const nameTries = 8

// Create stores a new object. obj belongs to the store afterwards. Errors are Status errors.
func (w *Writer) Create(r *kinds.Resource, obj kinds.APIObject, o Options) (*store.Object, error) {
	if obj.GetResourceVersion() != "" && obj.GetResourceVersion() != "0" {
		return nil, kinds.Plain("resourceVersion should not be set on objects to be created")
	}
	if err := w.admitNamespace(r, obj); err != nil {
		return nil, err
	}
	base := ""
	if obj.GetName() == "" {
		base = obj.GetGenerateName()
	}
	obj.SetUID(uuid.NewUUID())
	obj.SetCreationTimestamp(metav1.NewTime(w.store.Now().Truncate(time.Second)))
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
	obj.SetGeneration(0)
	if r.HasGeneration {
		obj.SetGeneration(1)
	}
	pristine := obj
	for range nameTries {
		if base != "" {
			obj = pristine.DeepCopyObject().(kinds.APIObject)
			obj.SetName(generateName(base))
		}
		if r.PrepareCreate != nil {
			r.PrepareCreate(obj)
		}
		if err := w.admit(r, obj); err != nil {
			return nil, err
		}
		if errs := validateNew(r, obj); len(errs) > 0 {
			return nil, apierrors.NewInvalid(r.GroupKind(), obj.GetName(), errs)
		}
		setManager(obj, r, o, w.store.Now())
		if r.ID() == kinds.CRDID {
			if err := w.kinds.Establish(obj); err != nil {
				return nil, err
			}
		}
		if o.DryRun {
			return w.dryCreate(r, obj)
		}
		done, err := w.store.Commit(r, nil, obj)
		if err == nil {
			return done, w.created(r, obj)
		}
		if !errors.Is(err, store.ErrRaced) {
			return nil, apierrors.NewInternalError(err)
		}
		if base == "" {
			return nil, apierrors.NewAlreadyExists(r.GroupResource(), obj.GetName())
		}
	}
	return nil, apierrors.NewGenerateNameConflict(r.GroupResource(), obj.GetName(), 1)
}

func (w *Writer) dryCreate(r *kinds.Resource, obj kinds.APIObject) (*store.Object, error) {
	key := kinds.ObjectKey(obj.GetNamespace(), obj.GetName())
	if w.store.Get(r, key) != nil {
		return nil, apierrors.NewAlreadyExists(r.GroupResource(), obj.GetName())
	}
	return dry(r, key, obj, 0)
}

// dry renders an object that will not be stored.
func dry(r *kinds.Resource, key string, obj kinds.APIObject, rv uint64) (*store.Object, error) {
	raw, err := kinds.Encode(r, obj, rv)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if rv == 0 {
		obj.SetResourceVersion("")
	}
	return &store.Object{Key: key, RV: rv, Decoded: obj, Raw: raw}, nil
}

// generateName appends five random characters, as the real server does.
func generateName(base string) string {
	const maxBase = 58
	if len(base) > maxBase {
		base = base[:maxBase]
	}
	return base + rand.String(5)
}

func validateNew(r *kinds.Resource, obj kinds.APIObject) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessor(obj, r.Namespaced, r.NameFormat, field.NewPath("metadata"))
	if r.Validate != nil {
		errs = append(errs, r.Validate(obj)...)
	}
	return errs
}

// Update replaces the object at key by what change makes of it. change may be
// called again when another write comes between. It returns the stored object,
// or, when the update removed the last finalizer of a deleting object, what was
// asked for while the object is gone. Errors are Status errors.
func (w *Writer) Update(r *kinds.Resource, key string, o Options, change func(cur *store.Object) (kinds.APIObject, error)) (*store.Object, error) {
	for {
		cur := w.store.Get(r, key)
		if cur == nil {
			name := key[strings.IndexByte(key, '/')+1:]
			return nil, apierrors.NewNotFound(r.GroupResource(), name)
		}
		next, err := change(cur)
		if err != nil {
			return nil, err
		}
		if err := precondition(r, next, cur); err != nil {
			return nil, err
		}
		next.SetResourceVersion(cur.Decoded.GetResourceVersion())
		prepareUpdate(r, next, cur.Decoded, o)
		if errs := validateChange(r, next, cur.Decoded, o); len(errs) > 0 {
			return nil, apierrors.NewInvalid(r.GroupKind(), cur.Decoded.GetName(), errs)
		}
		if r.ID() == kinds.CRDID {
			if err := w.kinds.Establish(next); err != nil {
				return nil, err
			}
		}
		if finished(next, cur.Decoded) {
			if o.DryRun {
				return dry(r, key, next, cur.RV)
			}
			if _, err := w.remove(r, cur); errors.Is(err, store.ErrRaced) {
				continue
			} else if err != nil {
				return nil, apierrors.NewInternalError(err)
			}
			return dry(r, key, next, cur.RV)
		}
		next.GetObjectKind().SetGroupVersionKind(cur.Decoded.GetObjectKind().GroupVersionKind())
		if same(next, cur.Decoded) {
			return cur, nil
		}
		setManager(next, r, o, w.store.Now())
		if o.DryRun {
			return dry(r, key, next, cur.RV)
		}
		done, err := w.store.Commit(r, cur, next)
		switch {
		case err == nil:
			if r.ID() == kinds.CRDID {
				err = w.kinds.Serve(next)
			}
			return done, err
		case !errors.Is(err, store.ErrRaced):
			return nil, apierrors.NewInternalError(err)
		}
	}
}

// precondition checks the identity and version a client claims to have seen.
func precondition(r *kinds.Resource, next kinds.APIObject, cur *store.Object) error {
	name := cur.Decoded.GetName()
	if uid := next.GetUID(); uid != "" && uid != cur.Decoded.GetUID() {
		return apierrors.NewConflict(r.GroupResource(), name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, cur.Decoded.GetUID()))
	}
	switch rv := next.GetResourceVersion(); rv {
	case cur.Decoded.GetResourceVersion():
		return nil
	case "", "0":
		if r.NeedsVersion {
			return apierrors.NewInvalid(r.GroupKind(), name, field.ErrorList{field.Invalid(
				field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
		}
		return nil
	}
	return apierrors.NewConflict(r.GroupResource(), name,
		errors.New("the object has been modified; please apply your changes to the latest version and try again"))
}

// PrepareUpdate restores what the written sub-resource may not change.
func prepareUpdate(r *kinds.Resource, next, old kinds.APIObject, o Options) {
	next.SetUID(old.GetUID())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	next.SetGeneration(old.GetGeneration())
	next.SetSelfLink(old.GetSelfLink())
	next.SetManagedFields(old.GetManagedFields())
	if next.GetGenerateName() == "" {
		next.SetGenerateName(old.GetGenerateName())
	}
	if o.Sub == "status" {
		if r.Custom {
			copyMeta(next, old)
		}
		r.CopySpec(next, old)
		if r.PrepareStatus != nil {
			r.PrepareStatus(next, old)
		}
		return
	}
	if r.HasStatus {
		r.CopyStatus(next, old)
	}
	if r.PrepareUpdate != nil {
		r.PrepareUpdate(next, old)
	}
	if r.HasGeneration && !sameSpec(r, next, old) {
		next.SetGeneration(old.GetGeneration() + 1)
	}
}

// copyMeta makes a status write to a custom resource leave its metadata alone.
func copyMeta(dst, src kinds.APIObject) {
	rv := dst.GetResourceVersion()
	if to, ok := dst.(*unstructured.Unstructured); ok {
		if from, ok := src.DeepCopyObject().(*unstructured.Unstructured); ok {
			to.Object["metadata"] = from.Object["metadata"]
		}
	}
	dst.SetResourceVersion(rv)
}

// sameSpec compares everything but metadata and status.
func sameSpec(r *kinds.Resource, a, b kinds.APIObject) bool {
	left, right := r.New(), r.New()
	r.CopySpec(left, a)
	r.CopySpec(right, b)
	return equality.Semantic.DeepEqual(left, right)
}

func validateChange(r *kinds.Resource, next, old kinds.APIObject, o Options) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessorUpdate(next, old, field.NewPath("metadata"))
	if o.Sub == "status" {
		if r.ValidateStatusUpdate != nil {
			errs = append(errs, r.ValidateStatusUpdate(next, old)...)
		}
		return errs
	}
	if r.Validate != nil {
		errs = append(errs, r.Validate(next)...)
	}
	if r.ValidateUpdate != nil {
		errs = append(errs, r.ValidateUpdate(next, old)...)
	}
	return errs
}

// finished reports whether an update lets a deleting object go.
func finished(next, old kinds.APIObject) bool {
	grace := old.GetDeletionGracePeriodSeconds()
	return len(next.GetFinalizers()) == 0 && old.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0)
}

// same reports whether an update changes nothing; such a write makes no new version.
func same(a, b kinds.APIObject) bool { return equality.Semantic.DeepEqual(a, b) }

// setManager notes who wrote last. The entries are small and name no fields: they
// exist so that clients meet managedFields and strip them.
func setManager(obj kinds.APIObject, r *kinds.Resource, o Options, now time.Time) {
	manager := o.Manager
	if manager == "" {
		manager = "unknown"
	}
	if len(manager) > 128 {
		manager = manager[:128]
	}
	entry := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: r.APIVersion(),
		Time: new(metav1.NewTime(now.Truncate(time.Second))), FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`), Subresource: o.Sub,
	}
	const most = 5
	kept := make([]metav1.ManagedFieldsEntry, 0, most)
	for _, m := range obj.GetManagedFields() {
		if (m.Manager != entry.Manager || m.Subresource != entry.Subresource) && len(kept) < most-1 {
			kept = append(kept, m)
		}
	}
	obj.SetManagedFields(append(kept, entry))
}
