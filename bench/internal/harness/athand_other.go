//go:build !linux

package harness

import "errors"

// touch is for Linux only.
func touch(int64) error { return errors.ErrUnsupported }
