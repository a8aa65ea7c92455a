package devcluster

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
)

// writeOptions come with every write.
type writeOptions struct {
	dryRun  bool
	manager string // who writes, for managedFields
	sub     string // the sub-resource written: "" or "status"
}

// writer changes what the store holds as the API does: with admission, defaults, validation,
// preconditions and finalizers. Its errors are Status errors.
type writer struct {
	store *store
	kinds *registry
}

func newWriter(s *store, kinds *registry) *writer { return &writer{store: s, kinds: kinds} }

// nameTries is how often a generated name that is taken is generated again.
const nameTries = 8

// create stores a new object. obj belongs to the store afterwards. Errors are Status errors.
func (w *writer) create(r *resource, obj apiObject, o writeOptions) (*object, error) {
	if obj.GetResourceVersion() != "" && obj.GetResourceVersion() != "0" {
		return nil, plain("resourceVersion should not be set on objects to be created")
	}
	if err := w.admitNamespace(r, obj); err != nil {
		return nil, err
	}
	base := ""
	if obj.GetName() == "" {
		base = obj.GetGenerateName()
	}
	obj.SetUID(uuid.NewUUID())
	obj.SetCreationTimestamp(metav1.NewTime(w.store.now().Truncate(time.Second)))
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
	obj.SetGeneration(0)
	if r.hasGeneration {
		obj.SetGeneration(1)
	}
	pristine := obj
	for range nameTries {
		if base != "" {
			obj = pristine.DeepCopyObject().(apiObject)
			obj.SetName(generateName(base))
		}
		if r.prepareCreate != nil {
			r.prepareCreate(obj)
		}
		if err := w.admit(r, obj); err != nil {
			return nil, err
		}
		if errs := validateNew(r, obj); len(errs) > 0 {
			return nil, apierrors.NewInvalid(r.groupKind(), obj.GetName(), errs)
		}
		setManager(obj, r, o, w.store.now())
		if r.id() == crdID {
			if err := w.kinds.establish(obj); err != nil {
				return nil, err
			}
		}
		if o.dryRun {
			return w.dryCreate(r, obj)
		}
		done, err := w.store.commit(r, nil, obj)
		if err == nil {
			return done, w.created(r, obj)
		}
		if !errors.Is(err, errRaced) {
			return nil, apierrors.NewInternalError(err)
		}
		if base == "" {
			return nil, apierrors.NewAlreadyExists(r.groupResource(), obj.GetName())
		}
	}
	return nil, apierrors.NewGenerateNameConflict(r.groupResource(), obj.GetName(), 1)
}

func (w *writer) dryCreate(r *resource, obj apiObject) (*object, error) {
	key := objectKey(obj.GetNamespace(), obj.GetName())
	if w.store.get(r, key) != nil {
		return nil, apierrors.NewAlreadyExists(r.groupResource(), obj.GetName())
	}
	return dry(r, key, obj, 0)
}

// dry renders an object that will not be stored.
func dry(r *resource, key string, obj apiObject, rv uint64) (*object, error) {
	raw, err := encode(r, obj, rv)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if rv == 0 {
		obj.SetResourceVersion("")
	}
	return &object{key: key, rv: rv, obj: obj, raw: raw}, nil
}

// generateName appends five random characters, as the real server does.
func generateName(base string) string {
	const maxBase = 58
	if len(base) > maxBase {
		base = base[:maxBase]
	}
	return base + rand.String(5)
}

func validateNew(r *resource, obj apiObject) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessor(obj, r.namespaced, r.nameFormat, field.NewPath("metadata"))
	if r.validate != nil {
		errs = append(errs, r.validate(obj)...)
	}
	return errs
}

// update replaces the object at key by what change makes of it. change may be
// called again when another write comes between. It returns the stored object,
// or, when the update removed the last finalizer of a deleting object, what was
// asked for while the object is gone. Errors are Status errors.
func (w *writer) update(r *resource, key string, o writeOptions, change func(cur *object) (apiObject, error)) (*object, error) {
	for {
		cur := w.store.get(r, key)
		if cur == nil {
			name := key[strings.IndexByte(key, '/')+1:]
			return nil, apierrors.NewNotFound(r.groupResource(), name)
		}
		next, err := change(cur)
		if err != nil {
			return nil, err
		}
		if err := precondition(r, next, cur); err != nil {
			return nil, err
		}
		next.SetResourceVersion(cur.obj.GetResourceVersion())
		prepareUpdate(r, next, cur.obj, o)
		if errs := validateChange(r, next, cur.obj, o); len(errs) > 0 {
			return nil, apierrors.NewInvalid(r.groupKind(), cur.obj.GetName(), errs)
		}
		if r.id() == crdID {
			if err := w.kinds.establish(next); err != nil {
				return nil, err
			}
		}
		if finished(next, cur.obj) {
			if o.dryRun {
				return dry(r, key, next, cur.rv)
			}
			if _, err := w.remove(r, cur); errors.Is(err, errRaced) {
				continue
			} else if err != nil {
				return nil, apierrors.NewInternalError(err)
			}
			return dry(r, key, next, cur.rv)
		}
		next.GetObjectKind().SetGroupVersionKind(cur.obj.GetObjectKind().GroupVersionKind())
		if same(next, cur.obj) {
			return cur, nil
		}
		setManager(next, r, o, w.store.now())
		if o.dryRun {
			return dry(r, key, next, cur.rv)
		}
		done, err := w.store.commit(r, cur, next)
		switch {
		case err == nil:
			if r.id() == crdID {
				err = w.kinds.serve(next)
			}
			return done, err
		case !errors.Is(err, errRaced):
			return nil, apierrors.NewInternalError(err)
		}
	}
}

// precondition checks the identity and version a client claims to have seen.
func precondition(r *resource, next apiObject, cur *object) error {
	name := cur.obj.GetName()
	if uid := next.GetUID(); uid != "" && uid != cur.obj.GetUID() {
		return apierrors.NewConflict(r.groupResource(), name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, cur.obj.GetUID()))
	}
	switch rv := next.GetResourceVersion(); rv {
	case cur.obj.GetResourceVersion():
		return nil
	case "", "0":
		if r.needsVersion {
			return apierrors.NewInvalid(r.groupKind(), name, field.ErrorList{field.Invalid(
				field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
		}
		return nil
	}
	return apierrors.NewConflict(r.groupResource(), name,
		errors.New("the object has been modified; please apply your changes to the latest version and try again"))
}

// prepareUpdate restores what the written sub-resource may not change.
func prepareUpdate(r *resource, next, old apiObject, o writeOptions) {
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
	if o.sub == "status" {
		if r.custom {
			copyMeta(next, old)
		}
		r.copySpec(next, old)
		if r.prepareStatus != nil {
			r.prepareStatus(next, old)
		}
		return
	}
	if r.hasStatus {
		r.copyStatus(next, old)
	}
	if r.prepareUpdate != nil {
		r.prepareUpdate(next, old)
	}
	if r.hasGeneration && !sameSpec(r, next, old) {
		next.SetGeneration(old.GetGeneration() + 1)
	}
}

// copyMeta makes a status write to a custom resource leave its metadata alone.
func copyMeta(dst, src apiObject) {
	rv := dst.GetResourceVersion()
	if to, ok := dst.(*unstructured.Unstructured); ok {
		if from, ok := src.DeepCopyObject().(*unstructured.Unstructured); ok {
			to.Object["metadata"] = from.Object["metadata"]
		}
	}
	dst.SetResourceVersion(rv)
}

// sameSpec compares everything but metadata and status.
func sameSpec(r *resource, a, b apiObject) bool {
	left, right := r.make(), r.make()
	r.copySpec(left, a)
	r.copySpec(right, b)
	return equality.Semantic.DeepEqual(left, right)
}

func validateChange(r *resource, next, old apiObject, o writeOptions) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessorUpdate(next, old, field.NewPath("metadata"))
	if o.sub == "status" {
		if r.validateStatusUpdate != nil {
			errs = append(errs, r.validateStatusUpdate(next, old)...)
		}
		return errs
	}
	if r.validate != nil {
		errs = append(errs, r.validate(next)...)
	}
	if r.validateUpdate != nil {
		errs = append(errs, r.validateUpdate(next, old)...)
	}
	return errs
}

// finished reports whether an update lets a deleting object go.
func finished(next, old apiObject) bool {
	grace := old.GetDeletionGracePeriodSeconds()
	return len(next.GetFinalizers()) == 0 && old.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0)
}

// same reports whether an update changes nothing; such a write makes no new version.
func same(a, b apiObject) bool { return equality.Semantic.DeepEqual(a, b) }

// setManager notes who wrote last. The entries are small and name no fields: they
// exist so that clients meet managedFields and strip them.
func setManager(obj apiObject, r *resource, o writeOptions, now time.Time) {
	manager := o.manager
	if manager == "" {
		manager = "unknown"
	}
	if len(manager) > 128 {
		manager = manager[:128]
	}
	entry := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: r.apiVersion(),
		Time: new(metav1.NewTime(now.Truncate(time.Second))), FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`), Subresource: o.sub,
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
