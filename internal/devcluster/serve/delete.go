package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/internal/devcluster/read"
)

// parseDeleteOptions reads DeleteOptions from the body or, without one, the parameters.
func (c *call) parseDeleteOptions() (metav1.DeleteOptions, error) {
	var o metav1.DeleteOptions
	data, err := c.body()
	if err != nil {
		return o, err
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &o); err != nil {
			return o, apierrors.NewBadRequest(fmt.Sprintf("DeleteOptions: json parse error: %v", err))
		}
		if o.Kind != "" && o.Kind != "DeleteOptions" {
			return o, apierrors.NewBadRequest(fmt.Sprintf("DeleteOptions: the body is of kind %q", o.Kind))
		}
	} else if err := c.deleteParameters(&o); err != nil {
		return o, err
	}
	var errs field.ErrorList
	if o.OrphanDependents != nil && o.PropagationPolicy != nil {
		errs = append(errs, field.Invalid(field.NewPath("propagationPolicy"), *o.PropagationPolicy, "orphanDependents and deletionPropagation cannot be both set"))
	}
	known := []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan}
	if p := o.PropagationPolicy; p != nil && !slices.Contains(known, *p) {
		errs = append(errs, field.NotSupported(field.NewPath("propagationPolicy"), *p, known))
	}
	for _, d := range o.DryRun {
		if d != metav1.DryRunAll {
			errs = append(errs, field.NotSupported(field.NewPath("dryRun"), d, []string{metav1.DryRunAll}))
		}
	}
	if len(errs) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return o, nil
}

func (c *call) deleteParameters(o *metav1.DeleteOptions) error {
	q := c.req.URL.Query()
	o.DryRun = q["dryRun"]
	if s := q.Get("gracePeriodSeconds"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return read.BadParameter("gracePeriodSeconds", s, err)
		}
		o.GracePeriodSeconds = &n
	}
	if s := q.Get("propagationPolicy"); s != "" {
		o.PropagationPolicy = new(metav1.DeletionPropagation(s))
	}
	if s := q.Get("orphanDependents"); s != "" {
		o.OrphanDependents = new(read.Truth(s))
	}
	return nil
}

func (a *Server) handleDelete(c *call) error {
	o, err := c.parseDeleteOptions()
	if err != nil {
		return err
	}
	done, gone, err := a.writer.Delete(c.res, c.key(), o)
	if err != nil {
		return err
	}
	if gone && !c.res.ReturnsDeleted {
		return c.json(http.StatusOK, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusSuccess,
			Details:  &metav1.StatusDetails{Name: c.name, Group: c.res.Group, Kind: c.res.Plural, UID: done.Decoded.GetUID()},
		})
	}
	code := http.StatusOK
	if !gone && o.OrphanDependents != nil && !*o.OrphanDependents {
		code = http.StatusAccepted
	}
	return c.object(code, done)
}

// handleDeleteCollection deletes what a selection matches and answers the list of it.
func (a *Server) handleDeleteCollection(c *call) error {
	if c.res.Namespaced && c.namespace == "" || c.res.Plural == "namespaces" {
		return methodNotAllowed()
	}
	o, err := c.parseDeleteOptions()
	if err != nil {
		return err
	}
	lo, err := read.ParseOptions(c.res, c.namespace, "", c.req.URL.Query())
	if err != nil {
		return err
	}
	p, err := a.reader.List(c.req.Context(), c.res, lo)
	if err != nil {
		return err
	}
	for _, obj := range p.Items {
		if _, _, err := a.writer.Delete(c.res, obj.Key, o); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.listOf(p, metav1.ListMeta{ResourceVersion: strconv.FormatUint(p.RV, 10), Continue: p.Next, RemainingItemCount: p.Remaining})
}
