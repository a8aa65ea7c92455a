package jsonscan

// Valid returns nil for one JSON value that nests no deeper than maxDepth, where zero is no bound;
// else an error that wraps [ErrSyntax] or [ErrDepth].
func Valid(b []byte, maxDepth int) error {
	s := Scanner{Strict: true, MaxDepth: maxDepth, b: b}
	if err := s.check(); err != nil {
		return err
	}
	return s.End()
}

// check consumes a valid value. It does not recurse, however deep the value nests.
func (s *Scanner) check() error {
	n := &s.nesting
	n.begin(s.room())
	for {
		// A value is due.
		switch c := s.Peek(); c {
		case '{', '[':
			if !n.push(c) {
				return s.tooDeep()
			}
			s.i++
			if s.Peek() == n.due() {
				break
			}
			if c == '{' {
				if err := s.member(); err != nil {
					return err
				}
			}
			continue
		case '"':
			if err := s.text(); err != nil {
				return err
			}
		default:
			if err := s.literal(c); err != nil {
				return err
			}
		}
		// A value is complete, or an empty one is about to be.
		for {
			if !n.open() {
				return nil
			}
			c, closing := s.Peek(), n.due()
			if c == closing {
				s.i++
				n.pop(c)
				continue
			}
			if c != ',' {
				return s.fault("neither a comma nor %q", closing)
			}
			s.i++
			if closing == '}' {
				if err := s.member(); err != nil {
					return err
				}
			}
			break
		}
	}
}

// member goes over a key and its colon.
func (s *Scanner) member() error {
	if _, err := s.key(); err != nil {
		return err
	}
	return s.colon()
}

// literal consumes a number, true, false or null, which begins with c.
func (s *Scanner) literal(c byte) error {
	switch c {
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

func (s *Scanner) word(want string) error {
	if end := s.i + len(want); end > len(s.b) || string(s.b[s.i:end]) != want {
		return s.fault("no value")
	}
	s.i += len(want)
	return nil
}

func (s *Scanner) number() error {
	if s.at('-') {
		s.i++
	}
	if s.at('0') {
		s.i++
	} else if !s.digits() {
		return s.fault("no value")
	}
	if s.at('.') {
		s.i++
		if !s.digits() {
			return s.fault("no digit")
		}
	}
	if s.at('e') || s.at('E') {
		s.i++
		if s.at('+') || s.at('-') {
			s.i++
		}
		if !s.digits() {
			return s.fault("no digit")
		}
	}
	return nil
}

func (s *Scanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

func (s *Scanner) digits() bool {
	begin := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > begin
}

// text consumes the string that opens here.
func (s *Scanner) text() error {
	if !s.Strict {
		end, open := closing(s.b, s.i+1)
		if open {
			return s.fault("string is not closed")
		}
		s.i = end
		return nil
	}
	i := s.i + 1
	for {
		if i += plain(s.b[i:]); i == len(s.b) {
			return s.fault("string is not closed")
		}
		switch s.b[i] {
		case '"':
			s.i = i + 1
			return nil
		case '\\':
			n := escape(s.b[i:])
			if n == 0 {
				return s.fault("string holds a bad escape")
			}
			i += n
		default:
			return s.fault("string holds a control character")
		}
	}
}

// escape is the length of the escape that begins b; 0 when it is none.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		for i := 2; i < 6; i++ {
			if i >= len(b) || !hexDigit(b[i]) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func hexDigit(c byte) bool { return c-'0' <= 9 || (c|0x20)-'a' <= 5 }
