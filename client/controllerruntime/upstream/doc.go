// Package upstream runs controller-runtime's own tests of pkg/cache, pkg/controller,
// pkg/internal/controller and pkg/manager, on a real API server that a Deltaplane mirrors, with
// what controllerruntime has in place of its caches, clients and queues. The tests come from the
// module cache and are patched in a temporary folder: where they call a constructor they call one
// of package swaptest. Those of pkg/cache are compiled together with a bridge, folder caches, the
// others in a copy of the module, as they use what is not exported. None of them is kept here. What
// does not pass is listed in testdata with its reason; a spec that passes or fails against that is
// an error.
package upstream
