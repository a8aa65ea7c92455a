// Package harness runs families of figures: it reads the command line, starts children, lets sides
// take turns, and judges and prints what they measured.
//
// In come families with their parts, and the kinds of children there are. Out go lines of figures,
// a report as JSON, and an error that says whether a target was missed. It knows nothing of what is
// measured.
package harness
