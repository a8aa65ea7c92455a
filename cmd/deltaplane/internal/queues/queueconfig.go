package queues

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// queueSettings are the flags of `queue configure`.
type queueSettings struct {
	file, limiter, dispatch, durability                                                         string
	lease, maxLease, barrier, aging, maxProcessing, backoffInitial, backoffMax, backoffExpireIn time.Duration
	partitions, replicas, maxDeliveries                                                         int32
	maxRetries                                                                                  int64
	absorb, once                                                                                bool
	jitter                                                                                      float64
}

func (s *queueSettings) register(flags *pflag.FlagSet) {
	flags.StringVarP(&s.file, "filename", "f", "", "YAML or JSON `file` with the whole configuration, - for standard input; what it leaves out is the default")
	flags.StringVar(&s.limiter, "rate-limiter", "", "how long a retried key waits: a `limiter`, see above")
	flags.DurationVar(&s.lease, "lease-duration", 0, "how long a worker may hold a key without extending, when it asks for nothing else")
	flags.DurationVar(&s.maxLease, "max-lease", 0, "longest lease, to which what a worker asks for is cut (default: the lease duration)")
	flags.Int32Var(&s.partitions, "partitions", 0, "partitions, 1 to 64, fixed when the queue is created")
	flags.DurationVar(&s.barrier, "barrier-retention", 0, "how long a barrier is kept after a key is done")
	flags.Int64Var(&s.maxRetries, "max-retries", 0, "rate-limited retries after which a key is dead, 0 for never")
	flags.Int32Var(&s.maxDeliveries, "max-deliveries", 0, "leases of a key that may end without a settlement before it is dead, 0 for any number")
	flags.BoolVar(&s.absorb, "absorb-delays", false, "an add takes a pending delay away (controller-runtime) in place of running again when it is due (client-go)")
	flags.BoolVar(&s.once, "reserve-once", false, "count a rate-limited add only when no delay of an earlier one is pending")
	flags.DurationVar(&s.aging, "aging", 0, "how long a key of low priority waits before every 8th lease goes to the oldest")
	flags.StringVar(&s.dispatch, "dispatch-limiter", "", "how fast keys are handed out: `QPS,BURST`, or none")
	flags.StringVar(&s.durability, "durability", "", "`when` an answer is given: memory, fsync or replicated")
	flags.Int32Var(&s.replicas, "replicas", 0, "replicas of the store that --durability replicated waits for, 1 to 10")
	flags.DurationVar(&s.maxProcessing, "max-processing", 0, "how long one lease may be extended in all, 0 for without end")
	flags.DurationVar(&s.backoffInitial, "backoff-initial", 0, "first delay of back-off entries")
	flags.DurationVar(&s.backoffMax, "backoff-max", 0, "longest delay of back-off entries")
	flags.Float64Var(&s.jitter, "backoff-jitter", 0, "share of the delay that is added at random, 0 to 1")
	flags.DurationVar(&s.backoffExpireIn, "backoff-expire-after", 0, "how long back-off entries live that are not moved")
}

var durabilities = map[string]queuev1.Durability{
	"memory": queuev1.Durability_DURABILITY_MEMORY, "fsync": queuev1.Durability_DURABILITY_FSYNC, "replicated": queuev1.Durability_DURABILITY_REPLICATED,
}

// apply changes what the flags given say. All faults are reported together.
func (s *queueSettings) apply(flags *pflag.FlagSet, c *queuev1.QueueConfig) error {
	var faults []error
	fault := func(flag string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if c.Backoff == nil {
		c.Backoff = &queuev1.BackoffConfig{}
	}
	if c.GetMaxLease().AsDuration() == c.GetLeaseDuration().AsDuration() {
		c.MaxLease = nil // the default goes with the lease duration
	}
	for flag, set := range map[string]func() error{
		"rate-limiter":         func() (err error) { c.RateLimiter, err = parseLimiter(s.limiter); return err },
		"lease-duration":       func() error { c.LeaseDuration = durationpb.New(s.lease); return nil },
		"max-lease":            func() error { c.MaxLease = durationpb.New(s.maxLease); return nil },
		"partitions":           func() error { c.Partitions = s.partitions; return nil },
		"barrier-retention":    func() error { c.BarrierRetention = durationpb.New(s.barrier); return nil },
		"max-retries":          func() error { c.MaxRetries = s.maxRetries; return nil },
		"max-deliveries":       func() error { c.MaxDeliveries = s.maxDeliveries; return nil },
		"absorb-delays":        func() error { c.AbsorbDelays = s.absorb; return nil },
		"reserve-once":         func() error { c.ReserveOnce = s.once; return nil },
		"aging":                func() error { c.Aging = durationpb.New(s.aging); return nil },
		"dispatch-limiter":     func() (err error) { c.DispatchLimiter, err = parseDispatch(s.dispatch); return err },
		"replicas":             func() error { c.Replicas = s.replicas; return nil },
		"max-processing":       func() error { c.MaxProcessing = durationpb.New(s.maxProcessing); return nil },
		"backoff-initial":      func() error { c.Backoff.Initial = durationpb.New(s.backoffInitial); return nil },
		"backoff-max":          func() error { c.Backoff.Max = durationpb.New(s.backoffMax); return nil },
		"backoff-jitter":       func() error { c.Backoff.JitterFactor = s.jitter; return nil },
		"backoff-expire-after": func() error { c.Backoff.ExpireAfter = durationpb.New(s.backoffExpireIn); return nil },
		"durability": func() error {
			level, ok := durabilities[s.durability]
			if !ok {
				return fmt.Errorf("%q is not memory, fsync or replicated", s.durability)
			}
			c.Durability = level
			return nil
		},
	} {
		if flags.Changed(flag) {
			fault(flag, set())
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return &cli.UsageError{Err: errors.Join(faults...)}
}

func newQueueConfigure() *cobra.Command {
	var s queueSettings
	var output string
	cmd := queueCommand(&cobra.Command{
		Use:   "configure QUEUE",
		Short: "Create a queue, or change one while it runs",
		Long: `Create a queue, or change one while it runs, and show the configuration in force. Flags
change what they name and leave the rest as it is; a file (-f, the fields of QueueConfig in
snake_case) replaces everything, and flags beside it win.

A limiter is one of these, or several joined by "+" of which the longest delay holds; "@" and
a time at the end caps it:

  exponential:BASE,MAX         BASE x 2^failures of the key, at most MAX
  bucket:QPS,BURST             a token bucket for the whole queue
  fast-slow:FAST,SLOW,N        FAST for the first N retries of a key, then SLOW

The default is client-go's: exponential:5ms,1000s+bucket:10,100`,
		Example: `  deltaplane queue configure dev/mine --rate-limiter exponential:1s,1m --max-retries 10
  deltaplane queue configure dev/mine --rate-limiter exponential:5ms,16m+bucket:10,100@30s
  deltaplane queue configure dev/mine --dispatch-limiter 50,10 --durability fsync
  deltaplane queue configure dev/mine -o yaml > mine.yaml && deltaplane queue configure dev/mine -f mine.yaml`,
		Args: cli.Args(cobra.ExactArgs(1)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		if output != "table" && output != "json" && output != "yaml" {
			return &cli.UsageError{Err: fmt.Errorf("--output %q: want table, json or yaml", output)}
		}
		config, err := s.base(cmd, client, a[0])
		if err != nil {
			return err
		}
		if err := s.apply(cmd.Flags(), config); err != nil {
			return err
		}
		answer, err := client.ConfigureQueue(cmd.Context(), &queuev1.ConfigureQueueRequest{Config: config})
		if err != nil {
			return err
		}
		return printConfig(cmd.OutOrStdout(), answer, output)
	})
	cmd.Flags().StringVarP(&output, "output", "o", "table", "`format`: table, json or yaml")
	s.register(cmd.Flags())
	_ = cmd.RegisterFlagCompletionFunc("durability", cobra.FixedCompletions([]string{"memory", "fsync", "replicated"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// base is the configuration that flags change: the file's, the present one, or none.
func (s *queueSettings) base(cmd *cobra.Command, client services, queue string) (*queuev1.QueueConfig, error) {
	if s.file != "" {
		config, err := readQueueConfig(cmd.InOrStdin(), s.file)
		if err != nil {
			return nil, &cli.UsageError{Err: err}
		}
		if config.Name != "" && config.Name != queue {
			return nil, &cli.UsageError{Err: fmt.Errorf("%s is the configuration of %s, not of %s", s.file, config.Name, queue)}
		}
		config.Name = queue
		return config, nil
	}
	answer, err := client.ListQueues(cmd.Context(), &queuev1.ListQueuesRequest{Prefix: queue})
	if err != nil {
		return nil, err
	}
	for _, q := range answer.GetQueues() {
		if q.GetConfig().GetName() == queue {
			return q.GetConfig(), nil
		}
	}
	return &queuev1.QueueConfig{Name: queue}, nil
}

func readQueueConfig(in io.Reader, path string) (*queuev1.QueueConfig, error) {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	document, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	config := &queuev1.QueueConfig{}
	if err := protojson.Unmarshal(document, config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

func printConfig(out io.Writer, answer *queuev1.ConfigureQueueResponse, output string) error {
	c := answer.GetConfig()
	switch output {
	case "json":
		return show.PrintMessage(out, c)
	case "yaml":
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c)
		if err != nil {
			return err
		}
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	done := "configured"
	if answer.GetCreated() {
		done = "created"
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, c.GetName(), done)
	line := func(name string, value any) { fmt.Fprintf(t, "  %s:\t%v\n", name, value) }
	line("Rate limiter", formatLimiter(c.GetRateLimiter()))
	line("Dispatch limiter", formatDispatch(c.GetDispatchLimiter()))
	line("Lease duration", c.GetLeaseDuration().AsDuration())
	line("Max lease", c.GetMaxLease().AsDuration())
	line("Max processing", orNone(c.GetMaxProcessing()))
	line("Max retries", c.GetMaxRetries())
	line("Max deliveries", c.GetMaxDeliveries())
	line("Partitions", c.GetPartitions())
	line("Durability", show.EnumText(c.GetDurability().String(), "DURABILITY_"))
	if c.GetDurability() == queuev1.Durability_DURABILITY_REPLICATED {
		line("Replicas", c.GetReplicas())
	}
	line("Aging", c.GetAging().AsDuration())
	line("Barrier retention", c.GetBarrierRetention().AsDuration())
	line("Absorb delays", c.GetAbsorbDelays())
	line("Reserve once", c.GetReserveOnce())
	if b := c.GetBackoff(); b != nil && !proto.Equal(b, &queuev1.BackoffConfig{}) {
		line("Back-off", fmt.Sprintf("%v to %v, jitter %v, expires after %v",
			b.GetInitial().AsDuration(), b.GetMax().AsDuration(), b.GetJitterFactor(), b.GetExpireAfter().AsDuration()))
	}
	return t.Flush()
}

func orNone(d *durationpb.Duration) string {
	if d.AsDuration() == 0 {
		return "none"
	}
	return d.AsDuration().String()
}
