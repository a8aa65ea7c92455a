package criruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func joinLog(dir, file string) string { return filepath.Join(dir, file) }

// writeLog appends lines in the CRI's format: time, stream, F for a full line, text.
// Folders that are missing are made, as containerd does. Without a log path nothing is written.
func (c *container) writeLog(at time.Time, stream string, lines ...string) error {
	if c.logPath == "" {
		return nil
	}
	const flags = os.O_CREATE | os.O_APPEND | os.O_WRONLY
	f, err := os.OpenFile(c.logPath, flags, 0o640)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(c.logPath), 0o755); err != nil {
			return fmt.Errorf("open log: %w", err)
		}
		f, err = os.OpenFile(c.logPath, flags, 0o640)
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	var b strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&b, "%s %s F %s\n", at.UTC().Format(time.RFC3339Nano), stream, line)
	}
	_, err = f.WriteString(b.String())
	return errors.Join(err, f.Close())
}

// leave writes what a run leaves behind: the end of its log, and its termination message.
func (c *container) leave(at time.Time, code int32) error {
	stream := "stdout"
	if code != 0 {
		stream = "stderr"
	}
	faults := []error{c.writeLog(at, stream, fmt.Sprintf("exit code %d", code))}
	if x := c.plan.extra; x != nil && x.message != "" {
		for _, m := range c.mounts {
			if m.ContainerPath == c.item.Annotations[messagePathAnnotation] {
				faults = append(faults, os.WriteFile(m.HostPath, []byte(x.message), 0o600))
			}
		}
	}
	return errors.Join(faults...)
}
