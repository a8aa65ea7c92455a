// Package controllerruntime runs controllers that are written on controller-runtime on a
// Deltaplane: any number of their replicas are active, without leader election and without a copy
// of the cluster in each.
package controllerruntime
