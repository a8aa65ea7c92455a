//go:build unix

package dirlock

import (
	"errors"
	"os"
	"syscall"
)

func take(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrTaken
	}
	return err
}
