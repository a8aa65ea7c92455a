// Package top is the command "top": what flows through the pipeline now, and what holds it up.
//
// In come the answers of reflector, index and queue once a second. Two of them become one document
// of rates, lags and the keys that take longest. Out go that document as JSON, as a table, or as a
// screen in a terminal that is put back as it was, however the command ends.
package top
