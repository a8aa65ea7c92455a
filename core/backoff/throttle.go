package backoff

// Throttle is client-go's flowcontrol token bucket with the time passed in:
// tokens of qps a second, burst of them at most. The zero value is full. All
// times are in microseconds.
type Throttle struct {
	TAT float64 // theoretical arrival time of the next token
}

// At is when the next token is there, which may be in the past.
func (t *Throttle) At(now int64, qps float64, burst int) float64 {
	return max(t.TAT, float64(now)) - float64(float64(burst-1)*(1e6/qps))
}

// Take takes a token if one is there: client-go's TryAccept.
func (t *Throttle) Take(now int64, qps float64, burst int) bool {
	if t.At(now, qps, burst) > float64(now) {
		return false
	}
	t.TAT = max(t.TAT, float64(now)) + 1e6/qps
	return true
}

// Return gives n tokens back.
func (t *Throttle) Return(n int, qps float64) { t.TAT -= float64(float64(n) * (1e6 / qps)) }

// Swap goes on with another rate: the node lifecycle controller's way. A bucket
// without a token starts empty, its next token comes an interval of the new
// rate from now; any other starts full.
func (t *Throttle) Swap(now int64, wasQPS float64, wasBurst int, qps float64, burst int) {
	if t.At(now, wasQPS, wasBurst) > float64(now) {
		t.TAT = float64(now) + float64(float64(burst)*(1e6/qps))
	} else {
		t.TAT = 0
	}
}
