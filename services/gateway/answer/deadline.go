package answer

import (
	"net/http"
	"time"
)

const (
	// writeTimeout is how long a reader may take for what is sent at once, and writeLeast how much
	// of that is left at least: to set a deadline for each event would cost as much as to send it.
	writeTimeout = time.Minute
	writeLeast   = 40 * time.Second
)

// deadline is when writing to a reader fails that takes nothing. Its zero value is not set.
type deadline struct{ at time.Time }

// extend gives the next write its time.
func (d *deadline) extend(c *http.ResponseController) {
	if now := time.Now(); d.at.Sub(now) < writeLeast {
		d.at = now.Add(writeTimeout)
		_ = c.SetWriteDeadline(d.at) // where there are none, none is needed
	}
}
