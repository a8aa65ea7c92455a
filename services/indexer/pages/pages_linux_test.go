package pages_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/deltaplane/deltaplane/services/indexer/pages"
)

func TestLargePagesAreAskedForUnderWholeBuffers(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skip("this kernel has no large pages to ask for")
	}
	buf := make([]byte, 5<<20)
	pages.Large(buf)
	for _, i := range []int{0, len(buf) / 2, len(buf) - 1} {
		if flags := flagsAt(t, &buf[i]); !strings.Contains(flags, " hg") {
			t.Errorf("the mapping under byte %d has the flags %q, want hg among them", i, flags)
		}
	}
	for i := range buf {
		if buf[i] != 0 {
			t.Fatalf("byte %d is %d", i, buf[i])
		}
		buf[i] = byte(i)
	}
	pages.Populate(buf)
	pages.Large(buf)
	for i := range buf {
		if buf[i] != byte(i) {
			t.Fatalf("byte %d became %d", i, buf[i])
		}
	}
	pages.Large(nil)
	pages.Populate(nil)
}

// flagsAt are the flags of the mapping that an address lies in.
func flagsAt(t *testing.T, p *byte) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip("needs /proc")
	}
	at, inside := uint64(uintptr(unsafe.Pointer(p))), false
	for line := range strings.Lines(string(text)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		} else if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return flags
		}
	}
	runtime.KeepAlive(p)
	t.Skip("the kernel does not tell the flags of mappings")
	return ""
}
