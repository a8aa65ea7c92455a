//go:build !linux

package pages

// Large does nothing.
func Large([]byte) {}

// Populate does nothing.
func Populate([]byte) {}
