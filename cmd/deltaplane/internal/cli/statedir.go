package cli

import (
	"os"
	"path/filepath"
)

// StateDir is where a user's programs keep their state, and this one below it.
func StateDir() (string, error) {
	if state := os.Getenv("XDG_STATE_HOME"); state != "" {
		return filepath.Join(state, "deltaplane"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "deltaplane"), err
}
