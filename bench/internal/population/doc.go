// Package population makes the pods that the families work on, the same from the same seed, and
// publishes them to a log.
package population
