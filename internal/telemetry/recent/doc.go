// Package recent keeps the last traces of a process in memory, for those who have no collector.
//
// In come spans that have ended, of every service of the process; out come summaries, newest first,
// and whole traces with their spans in the order of a tree. What is kept is bounded by number and
// by bytes: the oldest trace gives way.
package recent
