package serve

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
	"github.com/deltaplane/deltaplane/internal/devcluster/write"
)

// parseWriteOptions checks the parameters of a write.
func (c *call) writeOptions() (write.Options, kinds.FieldCheck, error) {
	q := c.req.URL.Query()
	o := write.Options{Manager: q.Get("fieldManager"), Sub: c.sub}
	if o.Manager == "" {
		o.Manager, _, _ = strings.Cut(c.req.UserAgent(), "/")
	}
	var errs field.ErrorList
	for _, v := range q["dryRun"] {
		if v != metav1.DryRunAll {
			errs = append(errs, field.NotSupported(field.NewPath("dryRun"), v, []string{metav1.DryRunAll}))
		}
		o.DryRun = true
	}
	check := kinds.WarnFields
	if v := q.Get("fieldValidation"); v != "" {
		check = kinds.FieldCheck(v)
	}
	if check != kinds.IgnoreFields && check != kinds.WarnFields && check != kinds.StrictFields {
		errs = append(errs, field.NotSupported(field.NewPath("fieldValidation"), check, []kinds.FieldCheck{kinds.IgnoreFields, kinds.StrictFields, kinds.WarnFields}))
	}
	if len(errs) > 0 {
		kind := map[string]string{http.MethodPost: "CreateOptions", http.MethodPut: "UpdateOptions", http.MethodPatch: "PatchOptions"}[c.req.Method]
		return o, check, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	return o, check, nil
}

// warn adds a warning header per text.
func (c *call) warn(texts []string) {
	for _, t := range texts {
		c.w.Header().Add("Warning", fmt.Sprintf("299 - %q", t))
	}
}

// decode reads the object that the body holds.
func (c *call) decode(check kinds.FieldCheck) (kinds.APIObject, []string, error) {
	data, err := c.body()
	if err != nil {
		return nil, nil, err
	}
	return kinds.Decode(c.res, data, check)
}

func (a *Server) handleCreate(c *call) error {
	o, check, err := c.writeOptions()
	if err != nil {
		return err
	}
	obj, warnings, err := c.decode(check)
	if err != nil {
		return err
	}
	if err := c.adoptNamespace(obj); err != nil {
		return err
	}
	done, err := a.writer.Create(c.res, obj, o)
	if err != nil {
		return err
	}
	c.warn(warnings)
	return c.object(http.StatusCreated, done)
}

// adoptNamespace makes the object's namespace the one in the path.
func (c *call) adoptNamespace(obj kinds.APIObject) error {
	if c.res.Namespaced && c.namespace == "" {
		return methodNotAllowed()
	}
	switch obj.GetNamespace() {
	case "", c.namespace:
		obj.SetNamespace(c.namespace)
		return nil
	}
	return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
}

func (a *Server) handleUpdate(c *call) error {
	o, check, err := c.writeOptions()
	if err != nil {
		return err
	}
	obj, warnings, err := c.decode(check)
	if err != nil {
		return err
	}
	if obj.GetName() == "" {
		return apierrors.NewBadRequest("name must be provided")
	}
	if obj.GetName() != c.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), c.name))
	}
	if err := c.adoptNamespace(obj); err != nil {
		return err
	}
	if c.res.CreateOnUpdate && c.sub == "" && a.store.Get(c.res, c.key()) == nil {
		done, err := a.writer.Create(c.res, obj, o)
		if err == nil {
			return c.object(http.StatusCreated, done)
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	done, err := a.writer.Update(c.res, c.key(), o, func(*store.Object) (kinds.APIObject, error) {
		return obj.DeepCopyObject().(kinds.APIObject), nil
	})
	if err != nil {
		return err
	}
	c.warn(warnings)
	return c.object(http.StatusOK, done)
}
