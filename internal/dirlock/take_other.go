//go:build !unix

package dirlock

import "os"

func take(*os.File) error { return nil }
