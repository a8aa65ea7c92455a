package workqueue

import (
	"container/heap"
)

// inspect tells everything known about a key.
func (m *Machine) inspect(now int64, key string) *Item {
	it := m.items[key]
	if it == nil {
		return &Item{Key: key}
	}
	return it.view(now)
}

func (it *item) view(now int64) *Item {
	v := &Item{
		Key: it.key, State: it.state, Token: it.token, Holder: it.holder, Deadline: it.deadline,
		Requeues: it.failures, DelayedUntil: it.due,
	}
	switch it.state {
	case Idle:
		if it.due != 0 {
			v.State, v.Level, v.ReadyAt = Waiting, it.dueLvl, it.due
		}
	case Ready, Processing, Dirty:
		v.Attempt, v.Level, v.AddedAt, v.ReadyAt = it.attempt, it.level, it.addedAt, it.readyAt
	}
	if a := it.aux; a != nil {
		if a.barrierUntil == 0 || a.barrierUntil > now {
			v.Barrier = a.barrier
		}
		v.StateBytes, v.Expect, v.Reason = len(a.data), a.expect.Live(now), a.reason
	}
	return v
}

// Items is a page of keys in a state (Idle for any) after the key cursor, in
// the order of keys, and the cursor of the next page, empty at the end. It
// looks at every key.
func (m *Machine) Items(now int64, state State, cursor string, limit int) ([]Item, string) {
	var page keyHeap
	more := false
	for key, it := range m.items {
		if key <= cursor || state != Idle && it.view(now).State != state {
			continue
		}
		if len(page) < limit {
			heap.Push(&page, key)
			continue
		}
		more = true
		if key < page[0] {
			page[0] = key
			heap.Fix(&page, 0)
		}
	}
	out := make([]Item, len(page))
	for i := len(page) - 1; i >= 0; i-- {
		out[i] = *m.items[heap.Pop(&page).(string)].view(now)
	}
	if !more || len(out) == 0 {
		return out, ""
	}
	return out, out[len(out)-1].Key
}

// keyHeap holds the smallest keys seen, the greatest of them first.
type keyHeap []string

func (h keyHeap) Len() int           { return len(h) }
func (h keyHeap) Less(i, j int) bool { return h[i] > h[j] }
func (h keyHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *keyHeap) Push(x any)        { *h = append(*h, x.(string)) }
func (h *keyHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
