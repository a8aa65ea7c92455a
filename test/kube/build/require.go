//go:build require

package build

// The module requires what upstream's suite is made of, or go test -c could not build it. The tag
// keeps the suite out of what is built and vetted here.
import _ "k8s.io/kubernetes/test/e2e"
