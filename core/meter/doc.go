// Package meter makes rates of counts that only grow.
//
// In come counts, by a name and by who counts them, each with the time of its answer. Out go rates
// by the second: several who count under one name add up, and who began again is somebody else.
package meter
