package table

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// modes are access modes by their short names, in the usual order.
func modes(all []string) string {
	var list []string
	for _, m := range []struct{ name, short string }{
		{"ReadWriteOnce", "RWO"}, {"ReadOnlyMany", "ROX"}, {"ReadWriteMany", "RWX"}, {"ReadWriteOncePod", "RWOP"},
	} {
		if slices.Contains(all, m.name) {
			list = append(list, m.short)
		}
	}
	return strings.Join(list, ",")
}

// volume is a persistent volume or a claim of one.
type volume struct {
	named
	Spec struct {
		Capacity                      map[string]string
		AccessModes                   []string
		PersistentVolumeReclaimPolicy string
		ClaimRef                      *struct{ Namespace, Name string }
		StorageClassName, VolumeMode  *string
		VolumeAttributesClassName     *string
		VolumeName                    string
	}
	Status struct {
		Phase, Reason string
		Capacity      map[string]string
		AccessModes   []string
	}
}

func (v *volume) phase() string {
	if v.Metadata.DeletionTimestamp != nil {
		return "Terminating"
	}
	return v.Status.Phase
}

// class is by the annotation that came before the field, where there is one.
func (v *volume) class() string {
	if class, ok := v.Metadata.Annotations["volume.beta.kubernetes.io/storage-class"]; ok {
		return class
	}
	return deref(v.Spec.StorageClassName, "")
}

const unset = "<unset>"

func volumeCells(v *volume, now time.Time) []any {
	claim := ""
	if v.Spec.ClaimRef != nil {
		claim = v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
	}
	return []any{
		v.Metadata.Name, cmp.Or(v.Spec.Capacity["storage"], "0"), modes(v.Spec.AccessModes), v.Spec.PersistentVolumeReclaimPolicy, v.phase(), claim, v.class(),
		deref(v.Spec.VolumeAttributesClassName, unset), v.Status.Reason, v.age(now), deref(v.Spec.VolumeMode, unset),
	}
}

func claimCells(v *volume, now time.Time) []any {
	capacity, access := "", ""
	if v.Spec.VolumeName != "" {
		capacity, access = cmp.Or(v.Status.Capacity["storage"], "0"), modes(v.Status.AccessModes)
	}
	return []any{
		v.Metadata.Name, v.phase(), v.Spec.VolumeName, capacity, access, v.class(), deref(v.Spec.VolumeAttributesClassName, unset), v.age(now),
		deref(v.Spec.VolumeMode, unset),
	}
}

type storageClass struct {
	named
	Provisioner                      string
	ReclaimPolicy, VolumeBindingMode *string
	AllowVolumeExpansion             *bool
}

func storageClassCells(s *storageClass, now time.Time) []any {
	name := s.Metadata.Name
	rest := []any{
		s.Provisioner, deref(s.ReclaimPolicy, "Delete"), deref(s.VolumeBindingMode, "Immediate"), deref(s.AllowVolumeExpansion, false), s.age(now),
	}
	for _, annotation := range []string{"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"} {
		if s.Metadata.Annotations[annotation] == "true" {
			return append([]any{name + " (default)"}, rest...)
		}
	}
	return append([]any{name}, rest...)
}

type disruptionBudget struct {
	named
	Spec   struct{ MinAvailable, MaxUnavailable *intstr.IntOrString }
	Status struct{ DisruptionsAllowed int64 }
}

func disruptionBudgetCells(d *disruptionBudget, now time.Time) []any {
	text := func(n *intstr.IntOrString) string {
		if n == nil {
			return "N/A"
		}
		return n.String()
	}
	return []any{d.Metadata.Name, text(d.Spec.MinAvailable), text(d.Spec.MaxUnavailable), d.Status.DisruptionsAllowed, d.age(now)}
}

type priorityClass struct {
	named
	Value            int64
	GlobalDefault    bool
	PreemptionPolicy string
}

func priorityClassCells(p *priorityClass, now time.Time) []any {
	return []any{p.Metadata.Name, p.Value, p.GlobalDefault, p.age(now), p.PreemptionPolicy}
}
