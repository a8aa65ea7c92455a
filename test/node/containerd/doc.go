// Package containerd starts a real containerd for tests and benchmarks, of its own:
// root, state and socket below one directory, images imported from archives
// made here, and nothing left behind after Close but what runs elsewhere.
//
// Which containerd: [Built] is made from Go modules by test/containerd
// (`make containerd`), [Installed] is the distribution's. Both need Linux, root and
// runc. [Find] says in a sentence what is missing.
package containerd
