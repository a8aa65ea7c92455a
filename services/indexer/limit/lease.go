package limit

// Lease is the memory that an answer is counted for until the transport lets go
// of it.
type Lease struct {
	From   *Quota // nil while there is none
	Client string
	N      int
	Lent   bool
	After  func() // nil for none; it must not reach the answer
}

// End gives back what is held.
func (l *Lease) End() {
	switch {
	case l.From == nil:
	case l.Lent:
		l.From.giveLent(l.N)
	default:
		l.From.Give(l.Client, l.N)
	}
	if l.After != nil {
		l.After()
	}
	*l = Lease{}
}
