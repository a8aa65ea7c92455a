// Package explain holds the command "deltaplane why": it has internal/explain ask about a key, and
// prints what core/why makes of the answers.
package explain
