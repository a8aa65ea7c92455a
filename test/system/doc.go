// Package system is the whole-system suite. It is written once against a [Target] and runs on
//
//   - the all-in-one process with its dev cluster (always),
//   - the all-in-one process against a real API server (DELTAPLANE_KUBECONFIG names its
//     kubeconfig),
//   - the compose deployment (DELTAPLANE_COMPOSE=1; it must be up).
//
// It speaks nothing but gRPC and the Kubernetes REST protocol, as any user would.
package system
