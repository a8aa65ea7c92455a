package workqueue

// inspect tells everything known about a key.
func (m *Machine) inspect(now int64, key string) *Item {
	it := m.items.of[key]
	if it == nil {
		return &Item{Key: key}
	}
	return it.view(now)
}

// where is the state of a key as an [Item] tells it.
func (it *item) where() State {
	if it.state == Idle && it.due != 0 {
		return Waiting
	}
	return it.state
}

func (it *item) view(now int64) *Item {
	v := &Item{
		Key: it.key, State: it.where(), Token: it.token, Holder: it.holder, Deadline: it.deadline,
		Requeues: int(it.failures), DelayedUntil: it.due,
	}
	switch v.State {
	case Waiting:
		v.Level, v.ReadyAt = it.dueLvl, it.due
	case Ready, Processing, Dirty:
		v.Attempt, v.Level, v.AddedAt, v.ReadyAt = int(it.attempt), it.level, it.addedAt, it.readyAt
	}
	if a := it.aux; a != nil {
		if a.barrierUntil == 0 || a.barrierUntil > now {
			v.Barrier = a.barrier
		}
		v.StateBytes, v.Data, v.Expect, v.Reason, v.Holders = len(a.data), a.data, a.expect.Live(now), a.reason, a.holders
	}
	return v
}

// PageWork bounds how many keys [Machine.Items] looks at.
const PageWork = 4096

// Items is at most limit keys in a state (Idle for any) from a place on, and
// the place where the next page begins, zero at the end; a walk begins at
// zero. It looks at PageWork keys at most, so a page may be short or empty
// before the end. What exists during a whole walk is met exactly once.
func (m *Machine) Items(now int64, state State, from, limit int) ([]Item, int) {
	var page []Item
	all := m.items.all
	i := max(from, 0)
	for end := min(i+PageWork, len(all)); i < end && len(page) < limit; i++ {
		if it := all[i]; it != nil && (state == Idle || it.where() == state) {
			page = append(page, *it.view(now))
		}
	}
	if i >= len(all) {
		i = 0
	}
	return page, i
}
