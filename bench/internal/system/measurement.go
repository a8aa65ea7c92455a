package system

import (
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// measurement is one load by a holder. The other end is who sends the pods.
type measurement struct {
	child, other *harness.Child
	empty        harness.Heap
	cpu, far     time.Duration // of both before the load
	Began        time.Time
	Numbers      map[string]float64
}

// BeginMeasurement begins one of a load whose objects take no more bytes of
// memory than held.
func BeginMeasurement(b *harness.Bench, c, other *harness.Child, held int) (*measurement, error) {
	b.Memory.Get(harness.HeldEmpty + int64(held))
	m := &measurement{child: c, other: other, Numbers: map[string]float64{}}
	mine, err := c.Usage()
	if err != nil {
		return nil, err
	}
	theirs, err := other.Usage()
	if err != nil {
		return nil, err
	}
	if err := c.Call("heap", nil, &m.empty); err != nil {
		return nil, err
	}
	m.cpu, m.far, m.Began = mine.CPU, theirs.CPU, time.Now()
	return m, nil
}

// Note keeps a number of this turn.
func (m *measurement) Note(name string, v float64) { m.Numbers[name] = v }

// Synced notes what the load has cost.
func (m *measurement) Synced() error {
	mine, err := m.child.Usage()
	if err != nil {
		return err
	}
	theirs, err := m.other.Usage()
	m.Note("cpu", (mine.CPU - m.cpu).Seconds())
	m.Note("far", (theirs.CPU - m.far).Seconds())
	return err
}

// Settled notes what is held, per object, and what a collection of it costs.
func (m *measurement) Settled(objects int) error {
	var after harness.Heap
	if err := m.child.Call("heap", nil, &after); err != nil {
		return err
	}
	n := float64(objects)
	m.Note("peak", float64(after.PeakRSS)/1e6)
	m.Note("live", float64(after.Live-m.empty.Live)/n)
	m.Note("rss", float64(after.RSS-m.empty.RSS)/n)
	m.Note("objects", float64(after.Objects-m.empty.Objects)/n)
	var cost harness.CollectionCost
	err := m.child.Call("collect", nil, &cost)
	m.Note("gc", cost.CPU.Seconds()*1e3)
	m.Note("gc-wall", cost.Wall.Seconds()*1e3)
	return err
}
