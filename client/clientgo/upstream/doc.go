// Package upstream runs client-go's own tests of util/workqueue and tools/cache on the queues and
// informers of clientgo. The tests come from the module cache: they are patched in a temporary
// folder, where constructors are exchanged, and compiled together with a bridge (folders queues and
// informers). None of them is kept here. What comes of each function is a list in testdata; a
// function that passes or fails against it is an error, and so is one that is not listed.
package upstream
