package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/deltaplane/deltaplane/internal/telemetry"
)

func (n *node) set(agent Agent, tel *telemetry.Telemetry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agent, n.tel = agent, tel
}

// ready is nil while the agent is ready, and while it is stopped as its node says.
func (n *node) ready(ctx context.Context) error {
	n.mu.Lock()
	agent, wanted := n.agent, n.wanted
	n.mu.Unlock()
	switch {
	case agent == nil && wanted:
		return errors.New("the agent has not started")
	case agent == nil || !wanted:
		return nil
	}
	var faults []error
	for _, c := range agent.Ready(ctx).Checks {
		if !c.OK {
			faults = append(faults, errors.New(c.Name+": "+c.Error))
		}
	}
	return errors.Join(faults...)
}

// metrics are the process's, and those of every agent that runs, each with the
// label "node".
func (f *Fleet) metrics() prometheus.Gatherer {
	all := prometheus.Gatherers{f.deps.Telemetry.Registry}
	for _, n := range f.nodes {
		all = append(all, prometheus.GathererFunc(n.gather))
	}
	return all
}

func (n *node) gather() ([]*dto.MetricFamily, error) {
	n.mu.Lock()
	tel := n.tel
	n.mu.Unlock()
	if tel == nil {
		return nil, nil
	}
	families, err := tel.Registry.Gather()
	label := &dto.LabelPair{Name: new("node"), Value: new(n.name)}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			m.Label = append(m.Label, label)
			slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		}
	}
	return families, err
}
