// Package child lets a test binary start itself again as the processes of a run, each in a role of
// its own.
package child
