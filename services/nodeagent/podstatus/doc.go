// Package podstatus makes the status of a pod from what the runtime says of it, and
// writes it to the API server.
//
// [Generate] is a function of the pod, its last status and the containers observed. A
// [Manager] keeps the newest status of every pod of a node until the API server has it:
// the latest wins, nothing is written that is there already, what other writers put into
// the status stays, and a write that fails is tried again until the pod is gone. It ends
// the life of pods that are being deleted.
package podstatus
