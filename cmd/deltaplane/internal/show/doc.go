// Package show prints what commands have read: tables with columns by kind, JSON, YAML, names and
// keys.
//
// In come objects, messages and the format that --output names. Out go lines on a writer that is
// passed in; what others chose, as names and messages, is quoted where a terminal would obey it. It
// calls no service.
package show
