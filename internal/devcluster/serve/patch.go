package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// maxPatchOps bounds a JSON patch, as the real server does.
const maxPatchOps = 10_000

func (a *Server) handlePatch(c *call) error {
	o, check, err := c.writeOptions()
	if err != nil {
		return err
	}
	kind, _, _ := mime.ParseMediaType(c.req.Header.Get("Content-Type"))
	apply, err := patcher(c.res, types.PatchType(kind))
	if err != nil {
		return err
	}
	patch, err := io.ReadAll(http.MaxBytesReader(c.w, c.req.Body, maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
		}
		return apierrors.NewBadRequest(fmt.Sprintf("read the request body: %v", err))
	}
	var warnings []string
	done, err := a.writer.Update(c.res, c.key(), o, func(cur *store.Object) (kinds.APIObject, error) {
		merged, err := apply(cur.Raw, patch)
		if err != nil {
			return nil, err
		}
		obj, w, err := kinds.Decode(c.res, merged, check)
		if err != nil {
			return nil, invalidPatch(c.res, cur, err)
		}
		warnings = w
		if uid := obj.GetUID(); uid != "" && uid != cur.Decoded.GetUID() {
			return nil, apierrors.NewInvalid(c.res.GroupKind(), c.name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable"),
			})
		}
		if obj.GetName() != c.name || obj.GetNamespace() != c.namespace {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)",
				kinds.ObjectKey(obj.GetNamespace(), obj.GetName()), c.key()))
		}
		return obj, nil
	})
	if err != nil {
		return err
	}
	c.warn(warnings)
	return c.object(http.StatusOK, done)
}

// invalidPatch is the error for a patch whose result is not an object of the kind.
func invalidPatch(r *kinds.Resource, cur *store.Object, err error) error {
	return apierrors.NewInvalid(r.GroupKind(), cur.Decoded.GetName(), field.ErrorList{
		field.Invalid(field.NewPath("patch"), "", err.Error()),
	})
}

// patcher returns the function that applies patches of a kind to objects of r.
func patcher(r *kinds.Resource, kind types.PatchType) (func(doc, patch []byte) ([]byte, error), error) {
	known := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if r.Typed() {
		known = append(known, string(types.StrategicMergePatchType))
	}
	switch {
	case kind == types.JSONPatchType:
		return applyJSONPatch, nil
	case kind == types.MergePatchType:
		return applyMergePatch, nil
	case kind == types.StrategicMergePatchType && r.Typed():
		return func(doc, patch []byte) ([]byte, error) { return applyStrategicPatch(r, doc, patch) }, nil
	}
	return nil, unsupportedMedia(known...)
}

func applyJSONPatch(doc, patch []byte) ([]byte, error) {
	ops, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if len(ops) > maxPatchOps {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOps, len(ops)))
	}
	out, err := ops.Apply(doc)
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return out, nil
}

func applyMergePatch(doc, patch []byte) ([]byte, error) {
	if err := wantObject(patch); err != nil {
		return nil, err
	}
	out, err := jsonpatch.MergePatch(doc, patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

func applyStrategicPatch(r *kinds.Resource, doc, patch []byte) ([]byte, error) {
	if err := wantObject(patch); err != nil {
		return nil, err
	}
	out, err := strategicpatch.StrategicMergePatch(doc, patch, r.New())
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

// wantObject refuses patches that are not a JSON object, naming where they break.
func wantObject(patch []byte) error {
	var m map[string]json.RawMessage
	err := json.Unmarshal(patch, &m)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch at offset %d: %v", syntax.Offset, err))
	}
	if err != nil || m == nil {
		return apierrors.NewBadRequest("error decoding patch: it must be a JSON object")
	}
	return nil
}
