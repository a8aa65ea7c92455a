// Package gateway measures the Kubernetes endpoint beside the API server that it stands before: the
// same requests on the same objects, in turns.
package gateway
