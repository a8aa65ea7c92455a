package harness

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// What a load takes for each object at most, no matter who holds it, with garbage and
// the sender's share, in bytes, and what its processes take without any: 4.2 GB
// for 100 k pods.
const (
	HeldEmpty    = 128 << 20
	HeldPerPod   = 40 << 10
	HeldPerSmall = 2 << 10
)

// atHand gets a machine ready for loads from nothing, so that all of them find
// the same memory. A virtual machine's host may take memory back that is free
// for a while, and then each first touch of a page waits for the host: what
// loads first, or after a pause, would pay for it, and what loads after another
// has just let go of its memory would not.
type atHand struct {
	took []float64 // by each touching, seconds a GB
	most int64     // touched at a time, bytes
}

// Get touches so much memory that it is at hand, but no more than half of what
// is available, and lets go of it. It does nothing where the system does not
// tell what is available, or does not give it.
func (a *atHand) Get(size int64) {
	meminfo, _ := os.ReadFile("/proc/meminfo") // none: nothing is available
	size = min(size, available(string(meminfo))/2)
	began := time.Now()
	if size <= 0 || touch(size) != nil {
		return
	}
	a.took = append(a.took, time.Since(began).Seconds()/(float64(size)/1e9))
	a.most = max(a.most, size)
}

// available is the memory that can be had without swapping, in bytes, out of
// the text of /proc/meminfo; 0 when it does not say.
func available(meminfo string) int64 { return sizeIn(meminfo, "MemAvailable") }

// String is the note of a report; empty when nothing was done.
func (a *atHand) String() string {
	if len(a.took) == 0 {
		return ""
	}
	return fmt.Sprintf("before each load from nothing, no matter whose it was, the bench touched up to %.1f GB of memory and let go of it, "+
		"because the host of a virtual machine may take back what is free, and who touches it next waits for the host; "+
		"the first touching took %.2f s a GB, the last %.2f, the %d of them %.2f to %.2f. "+
		"Such a host begins again about 2 s after memory is free: a load that takes longer, as client-go's do, still waits for a part of its own",
		float64(a.most)/1e9, a.took[0], a.took[len(a.took)-1], len(a.took), slices.Min(a.took), slices.Max(a.took))
}
