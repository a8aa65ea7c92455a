// Package critest is our conformance suite for container runtimes behind the CRI:
// what the node agent relies on, and what it has to know of differences. It runs on
// the simulated runtime and on a real containerd alike.
//
// A container's behaviour is given twice, as a command of the test image (test/containerd
// builds it) and as annotations, of which each runtime understands one.
package critest
