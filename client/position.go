package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrPosition says that a text is not that of a [Position].
var ErrPosition = errors.New("client: malformed position")

// numbers are the fields of a position, in the order of its text. The last is left out of the text
// when it is zero.
func (p *Position) numbers() []*uint64 {
	return []*uint64{&p.Epoch, &p.Sequence, &p.Term, &p.ToldEpoch, &p.ToldSequence, &p.ToldTerm, &p.Selection, &p.Scope}
}

// MarshalText writes a position for somebody who keeps it: numbers joined by dots, or nothing for
// the zero value.
func (p Position) MarshalText() ([]byte, error) {
	if p == (Position{}) {
		return nil, nil
	}
	var text []byte
	for i, n := range p.numbers() {
		if n == &p.Scope && *n == 0 {
			break
		}
		if i > 0 {
			text = append(text, '.')
		}
		text = strconv.AppendUint(text, *n, 10)
	}
	return text, nil
}

// UnmarshalText reads what MarshalText wrote. The error is [ErrPosition].
func (p *Position) UnmarshalText(text []byte) error {
	*p = Position{}
	if len(text) == 0 {
		return nil
	}
	parts := strings.Split(string(text), ".")
	var read Position
	numbers := read.numbers()
	if len(parts) != len(numbers) && len(parts) != len(numbers)-1 {
		return fmt.Errorf("%w: %q", ErrPosition, text)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrPosition, text, err)
		}
		*numbers[i] = n
	}
	*p = read
	return nil
}
