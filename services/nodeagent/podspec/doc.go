// Package podspec says what of a pod's spec the node agent cannot do, before anything
// of the pod is started.
package podspec
