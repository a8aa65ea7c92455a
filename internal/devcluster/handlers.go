package devcluster

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// parseWriteOptions checks the parameters of a write.
func (c *call) writeOptions() (writeOptions, fieldCheck, error) {
	q := c.req.URL.Query()
	o := writeOptions{manager: q.Get("fieldManager"), sub: c.sub}
	if o.manager == "" {
		o.manager, _, _ = strings.Cut(c.req.UserAgent(), "/")
	}
	var errs field.ErrorList
	for _, v := range q["dryRun"] {
		if v != metav1.DryRunAll {
			errs = append(errs, field.NotSupported(field.NewPath("dryRun"), v, []string{metav1.DryRunAll}))
		}
		o.dryRun = true
	}
	check := checkWarn
	if v := q.Get("fieldValidation"); v != "" {
		check = fieldCheck(v)
	}
	if check != checkIgnore && check != checkWarn && check != checkStrict {
		errs = append(errs, field.NotSupported(field.NewPath("fieldValidation"), check, []fieldCheck{checkIgnore, checkStrict, checkWarn}))
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
func (c *call) decode(check fieldCheck) (apiObject, []string, error) {
	data, err := c.body()
	if err != nil {
		return nil, nil, err
	}
	return decode(c.res, data, check)
}

func (a *server) handleCreate(c *call) error {
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
	done, err := a.writer.create(c.res, obj, o)
	if err != nil {
		return err
	}
	c.warn(warnings)
	return c.object(http.StatusCreated, done)
}

// adoptNamespace makes the object's namespace the one in the path.
func (c *call) adoptNamespace(obj apiObject) error {
	if c.res.namespaced && c.namespace == "" {
		return methodNotAllowed()
	}
	switch obj.GetNamespace() {
	case "", c.namespace:
		obj.SetNamespace(c.namespace)
		return nil
	}
	return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
}

func (a *server) handleUpdate(c *call) error {
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
	if c.res.createOnUpdate && c.sub == "" && a.store.get(c.res, c.key()) == nil {
		done, err := a.writer.create(c.res, obj, o)
		if err == nil {
			return c.object(http.StatusCreated, done)
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	done, err := a.writer.update(c.res, c.key(), o, func(*object) (apiObject, error) {
		return obj.DeepCopyObject().(apiObject), nil
	})
	if err != nil {
		return err
	}
	c.warn(warnings)
	return c.object(http.StatusOK, done)
}
