//go:build !linux

package volume

import (
	"errors"
	"os"
)

func (systemMounter) tmpfs(string, int64, os.FileMode, int) error { return errors.ErrUnsupported }

func (systemMounter) bind(string, string, string) error { return errors.ErrUnsupported }

func (systemMounter) unmount(string) error { return errors.ErrUnsupported }

func (systemMounter) under(string) ([]string, error) { return nil, nil }
