// Package forward passes requests on to the API server as they are, and reads from its answers what
// was written.
package forward
