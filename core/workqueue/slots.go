package workqueue

// slots is a map whose values can also be walked in bounded steps while it
// changes: each has a place for as long as it exists, so that a walk meets
// whatever exists all the while exactly once.
type slots[T any] struct {
	of   map[string]*T
	all  []*T // nil where free
	free []int32
	slot func(*T) *int32
}

func (s *slots[T]) init(slot func(*T) *int32) {
	s.of, s.slot = map[string]*T{}, slot
}

func (s *slots[T]) put(key string, v *T) {
	s.of[key] = v
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.all[i], *s.slot(v) = v, i
		return
	}
	*s.slot(v) = int32(len(s.all))
	s.all = append(s.all, v)
}

func (s *slots[T]) remove(key string, v *T) {
	delete(s.of, key)
	i := *s.slot(v)
	s.all[i] = nil
	s.free = append(s.free, i)
	if len(s.of) == 0 && len(s.all) > 1024 { // give back what a burst took
		s.of, s.all, s.free = map[string]*T{}, nil, nil
	}
}
