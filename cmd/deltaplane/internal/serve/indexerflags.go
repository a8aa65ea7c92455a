package serve

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// registerMemory says how much memory an indexer may take, and how it keeps objects there.
func registerMemory(flags *pflag.FlagSet, cfg *indexer.Config) {
	defer cli.Section(flags, cli.SectionIndex)()
	flags.StringVar((*string)(&cfg.Tier), "index-tier", string(indexer.TierAuto), "`tier` objects are kept in: raw, as they are served; compact, compressed when they have not changed for 10 s; auto, raw until the memory budget is nearly used")
	flags.Var((*byteSize)(&cfg.MemoryBudget), "index-memory-budget", "`bytes` that all collections may take, for example 2Gi; one that does not fit is refused, the others are served. The garbage collector then keeps the process within about 1.25 times this and 640Mi, unless GOMEMLIMIT is set (default: no bound)")
}

// byteSize is a number of bytes on the command line, also with a unit such as Mi or G.
type byteSize int

// Set implements pflag.Value.
func (b *byteSize) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("%q is not a number of bytes such as 512Mi or 2G", text)
	}
	n, ok := q.AsInt64()
	if !ok || n < 0 {
		return fmt.Errorf("%q is not a whole number of bytes", text)
	}
	*b = byteSize(n)
	return nil
}

// String implements pflag.Value.
func (b *byteSize) String() string {
	if *b == 0 {
		return ""
	}
	return resource.NewQuantity(int64(*b), resource.BinarySI).String()
}

// Type implements pflag.Value.
func (*byteSize) Type() string { return "bytes" }
