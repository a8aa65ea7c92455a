package podsync

import (
	"container/heap"
	"time"
)

// Due says when keys are to be looked at again. The last write of a key wins,
// whether it is earlier or later. The zero value is empty and ready.
type Due[K comparable] struct {
	byKey map[K]*due[K]
	heap  dueHeap[K]
}

type due[K comparable] struct {
	key K
	at  time.Time
	pos int
}

// Set makes key due at a time, whatever it was before.
func (q *Due[K]) Set(key K, at time.Time) {
	if d := q.byKey[key]; d != nil {
		d.at = at
		heap.Fix(&q.heap, d.pos)
		return
	}
	if q.byKey == nil {
		q.byKey = map[K]*due[K]{}
	}
	d := &due[K]{key: key, at: at}
	q.byKey[key] = d
	heap.Push(&q.heap, d)
}

// Drop forgets key.
func (q *Due[K]) Drop(key K) {
	if d := q.byKey[key]; d != nil {
		heap.Remove(&q.heap, d.pos)
		delete(q.byKey, key)
	}
}

// Take removes and returns the keys that were due strictly before now, the
// longest due first.
func (q *Due[K]) Take(now time.Time) []K {
	var keys []K
	for len(q.heap) > 0 && q.heap[0].at.Before(now) {
		d := heap.Pop(&q.heap).(*due[K])
		delete(q.byKey, d.key)
		keys = append(keys, d.key)
	}
	return keys
}

// Next is when the next key is due; ok is false when there is none.
func (q *Due[K]) Next() (at time.Time, ok bool) {
	if len(q.heap) == 0 {
		return time.Time{}, false
	}
	return q.heap[0].at, true
}

// Len is how many keys wait.
func (q *Due[K]) Len() int { return len(q.heap) }

type dueHeap[K comparable] []*due[K]

func (h dueHeap[K]) Len() int           { return len(h) }
func (h dueHeap[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *dueHeap[K]) Push(x any) {
	d := x.(*due[K])
	d.pos = len(*h)
	*h = append(*h, d)
}

func (h *dueHeap[K]) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return d
}
