// Package system is the whole-system suite. It is written once against a [Target] and runs on
//
//   - the all-in-one process with its dev cluster (always),
//   - the all-in-one process against a real API server (DELTAPLANE_KUBECONFIG names its
//     kubeconfig),
//   - the compose deployment (DELTAPLANE_COMPOSE=1; it must be up).
//
// `make soak-system` runs everything as processes for SOAK, an hour for example, while parts, the
// API server, NATS and Redis are killed and stopped, connections are cut and Redis is full, at
// random; then it holds each Job, index, queue, process and log to what they are without faults.
//
// The suite speaks nothing but gRPC and the Kubernetes REST protocol, as any user would.
package system
