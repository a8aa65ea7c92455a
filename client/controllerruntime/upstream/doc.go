// Package upstream runs controller-runtime's own tests of pkg/cache, on a real API server that a
// Deltaplane mirrors, with the caches of controllerruntime in place of its own. The tests come from
// the module cache: they are patched in a temporary folder and compiled together with a bridge,
// folder caches. None of them is kept here. What does not pass is listed in testdata with its
// reason; a spec that passes or fails against that is an error.
package upstream
