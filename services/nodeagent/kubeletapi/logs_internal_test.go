package kubeletapi

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// noting notes the deadline of each write, and whether one is left behind.
type noting struct {
	*httptest.ResponseRecorder
	deadline time.Time
	writes   []time.Duration
}

func (n *noting) SetWriteDeadline(at time.Time) error { n.deadline = at; return nil }

func (n *noting) Write(b []byte) (int, error) {
	n.writes = append(n.writes, time.Until(n.deadline))
	return n.ResponseRecorder.Write(b)
}

func TestAWriteHasADeadlineAndTheTimeBetweenTwoHasNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &noting{ResponseRecorder: httptest.NewRecorder()}
		f := &flushing{ResponseWriter: n, control: http.NewResponseController(n), stall: time.Minute, each: true}
		for range 2 {
			if _, err := f.Write([]byte("x")); err != nil || !n.deadline.IsZero() {
				t.Errorf("Write() = %v, then the deadline is %v", err, n.deadline)
			}
			time.Sleep(time.Hour)
		}
		if want := []time.Duration{time.Minute, time.Minute}; !slices.Equal(n.writes, want) {
			t.Errorf("deadlines are %v ahead, want %v", n.writes, want)
		}
	})
}
