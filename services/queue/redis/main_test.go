package redis_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Most of these tests wait most of the time: more at once than there are processors. The flag -parallel overrides it.
	_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	goleak.VerifyTestMain(m)
}
