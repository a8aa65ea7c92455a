// Package queues holds the commands under "deltaplane queue": they look into work queues and change
// them.
//
// In come queues, keys and states as an operator writes them. Out go calls of the queue service and
// what it answered.
package queues
