//go:build !linux

package embedded

import "syscall"

func childAttr() *syscall.SysProcAttr { return nil }
