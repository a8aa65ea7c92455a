package store

// Step does one chunk, of n objects, of what Build does.
func (s *Store) Step(n int) bool {
	s.chunk = n
	return s.step()
}
