package controllers

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

func TestTheZeroConfigIsValidAndFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("zero config: %v", err)
	}
	if got := Names(); !slices.Equal(got, []string{"job", "nodelifecycle", "podgc", "tainteviction"}) {
		t.Errorf("Names() = %v", got)
	}
	err := Config{
		Cluster: "a/b", Controllers: []string{"cron", "job", "job"}, Concurrency: -1, Lease: time.Millisecond, Partitions: 5000,
		Admin: telemetry.AdminConfig{Listen: "0.0.0.0:1"},
	}.Validate()
	for _, want := range []string{`cluster "a/b"`, `"cron"; there are job, nodelifecycle, podgc, tainteviction`, `"job" is named twice`, "concurrency -1", "lease 1ms", "partitions 5000", "0.0.0.0:1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults do not name %s:\n%v", want, err)
		}
	}
}

func TestAJobsResultBecomesTheWorkers(t *testing.T) {
	t.Parallel()
	a := &jobAdapter{jobs: "dev/jobs.v1.batch", pods: "dev/pods.v1"}
	failure := errors.New("no")
	for _, c := range []struct {
		in       job.Result
		outcome  client.Outcome
		err      error
		terminal bool
	}{
		{job.Result{Settle: job.Forget}, client.OutcomeForget, nil, false},
		{job.Result{Settle: job.After, After: time.Minute}, client.OutcomeAfter, nil, false},
		{job.Result{Settle: job.RateLimited, Err: failure}, client.OutcomeRateLimited, failure, false},
		{job.Result{Settle: job.RateLimited}, client.OutcomeRateLimited, nil, false},
		{job.Result{Settle: job.Lost, Err: failure}, client.OutcomeAbandon, nil, false},
		{job.Result{Settle: job.Dead, Err: failure}, client.OutcomeDead, failure, true},
	} {
		c.in.ReadAt.Pods = delta.Revision{Epoch: 1, RV: "5"}
		res, err := a.result(c.in, client.Reading{"dev/pods.v1": {Revision: client.Revision{Epoch: 1, RV: "5"}, Upper: client.Revision{Epoch: 1, RV: "8"}}})
		if res.Outcome != c.outcome || !errors.Is(err, c.err) || res.After != c.in.After {
			t.Errorf("%v: outcome %v, error %v", c.in.Settle, res.Outcome, err)
		}
		if c.terminal && err.Error() == failure.Error() {
			t.Errorf("%v: the error is not terminal", c.in.Settle)
		}
		if len(res.ReadAt) != 1 || res.ReadAt["dev/pods.v1"].RV != "5" || res.ReadAt["dev/pods.v1"].Upper.RV != "8" || len(res.Wrote) != 0 {
			t.Errorf("%v: read at %v, wrote %v", c.in.Settle, res.ReadAt, res.Wrote)
		}
	}
}
