package queues

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// parseLimiter reads a limiter as `queue configure --help` writes it. Whether its numbers make
// sense is the service's to say.
func parseLimiter(text string) (*queuev1.RateLimiter, error) {
	body, most, capped := strings.Cut(text, "@")
	var all []*queuev1.RateLimiter
	for part := range strings.SplitSeq(body, "+") {
		one, err := parseOneLimiter(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	limiter := all[0]
	if len(all) > 1 {
		limiter = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: &queuev1.MaxOfLimiter{Limiters: all}}}
	}
	if capped {
		d, err := time.ParseDuration(strings.TrimSpace(most))
		if err != nil {
			return nil, fmt.Errorf("%q behind @ is not a time such as 30s", most)
		}
		limiter = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxWait{MaxWait: &queuev1.MaxWaitLimiter{Limiter: limiter, Max: durationpb.New(d)}}}
	}
	return limiter, nil
}

func parseOneLimiter(text string) (*queuev1.RateLimiter, error) {
	kind, values, _ := strings.Cut(text, ":")
	in := strings.Split(values, ",")
	for i := range in {
		in[i] = strings.TrimSpace(in[i])
	}
	var err error
	span := func(i int) *durationpb.Duration {
		d, e := time.ParseDuration(in[i])
		if e != nil && err == nil {
			err = fmt.Errorf("%q in %q is not a time such as 5ms", in[i], text)
		}
		return durationpb.New(d)
	}
	whole := func(i int) int64 {
		n, e := strconv.ParseInt(in[i], 10, 64)
		if e != nil && err == nil {
			err = fmt.Errorf("%q in %q is not a number", in[i], text)
		}
		return n
	}
	switch {
	case kind == "exponential" && len(in) == 2:
		l := &queuev1.ExponentialLimiter{Base: span(0), Max: span(1)}
		return &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: l}}, err
	case kind == "bucket" && len(in) == 2:
		l, err := parseBucket(values)
		return &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: l}}, err
	case kind == "fast-slow" && len(in) == 3:
		l := &queuev1.FastSlowLimiter{Fast: span(0), Slow: span(1), MaxFastAttempts: whole(2)}
		return &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_FastSlow{FastSlow: l}}, err
	}
	return nil, fmt.Errorf("%q is not exponential:BASE,MAX, bucket:QPS,BURST or fast-slow:FAST,SLOW,N", text)
}

func parseBucket(text string) (*queuev1.BucketLimiter, error) {
	rate, most, _ := strings.Cut(text, ",")
	qps, err := strconv.ParseFloat(strings.TrimSpace(rate), 64)
	if err != nil || math.IsNaN(qps) || math.IsInf(qps, 0) {
		return nil, fmt.Errorf("%q is not a number of keys a second", rate)
	}
	burst, err := strconv.ParseInt(strings.TrimSpace(most), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not QPS,BURST such as 10,100", text)
	}
	return &queuev1.BucketLimiter{Qps: qps, Burst: burst}, nil
}

func parseDispatch(text string) (*queuev1.BucketLimiter, error) {
	if text == "none" || text == "" {
		return nil, nil //nolint:nilnil // none is none
	}
	return parseBucket(text)
}

// formatLimiter writes a limiter so that parseLimiter reads it, as long as it is not nested deeper
// than that can be.
func formatLimiter(l *queuev1.RateLimiter) string {
	switch k := l.GetKind().(type) {
	case *queuev1.RateLimiter_Exponential:
		return fmt.Sprintf("exponential:%v,%v", k.Exponential.GetBase().AsDuration(), k.Exponential.GetMax().AsDuration())
	case *queuev1.RateLimiter_Bucket:
		return "bucket:" + formatDispatch(k.Bucket)
	case *queuev1.RateLimiter_FastSlow:
		return fmt.Sprintf("fast-slow:%v,%v,%d", k.FastSlow.GetFast().AsDuration(), k.FastSlow.GetSlow().AsDuration(), k.FastSlow.GetMaxFastAttempts())
	case *queuev1.RateLimiter_MaxOf:
		var parts []string
		for _, one := range k.MaxOf.GetLimiters() {
			parts = append(parts, formatLimiter(one))
		}
		return strings.Join(parts, "+")
	case *queuev1.RateLimiter_MaxWait:
		return fmt.Sprintf("%s@%v", formatLimiter(k.MaxWait.GetLimiter()), k.MaxWait.GetMax().AsDuration())
	}
	return "none"
}

func formatDispatch(b *queuev1.BucketLimiter) string {
	if b == nil {
		return "none"
	}
	return strconv.FormatFloat(b.GetQps(), 'f', -1, 64) + "," + strconv.FormatInt(b.GetBurst(), 10)
}
