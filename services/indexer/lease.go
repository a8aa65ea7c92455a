package indexer

// lease is the memory that an answer is counted for until the transport lets go
// of it.
type lease struct {
	from   *quota // nil while there is none
	client string
	n      int
	lent   bool
	after  func() // nil for none; it must not reach the answer
}

// end gives back what is held.
func (l *lease) end() {
	switch {
	case l.from == nil:
	case l.lent:
		l.from.giveLent(l.n)
	default:
		l.from.give(l.client, l.n)
	}
	if l.after != nil {
		l.after()
	}
	*l = lease{}
}
