package trust

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// operator is the user of the token that is made.
const operator = "deltaplane:admin"

// token makes the operator's token, for who calls without a certificate, such as a browser, and
// has each part that decides know it by its hash: the token is in no folder of a part.
func (m *maker) token() error {
	const file = "admin/token"
	if err := m.once(file, "token of the operator, for the console", func() ([]byte, error) { return []byte(rand.Text() + "\n"), nil }); err != nil {
		return err
	}
	token, err := os.ReadFile(m.path(file))
	if err != nil {
		return err
	}
	hashed, err := rpc.HashedToken(string(bytes.TrimSpace(token)))
	if err != nil {
		return fmt.Errorf("%s: %w", m.path(file), err)
	}
	line := fmt.Appendf(nil, "%s %s groups=%s", hashed, operator, operatorsGroup)
	for _, p := range parts() {
		if p.answers {
			err = errors.Join(err, m.caller(p.name+"/tokens", line))
		}
	}
	return err
}

// caller puts the operator's line into a file of tokens, which may have lines of other callers.
func (m *maker) caller(name string, line []byte) error {
	old, err := os.ReadFile(m.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // what cannot be read is not replaced
	}
	return m.always(name, "tokens of callers", withOperator(old, line))
}

// withOperator is a file of tokens with this line in place of those of the operator. All others
// stay as they are, those too that the part will refuse.
func withOperator(file, line []byte) []byte {
	var lines [][]byte
	put := false
	for old := range bytes.Lines(file) {
		fields := bytes.Fields(old)
		if len(fields) < 2 || fields[0][0] == '#' || string(fields[1]) != operator {
			lines = append(lines, bytes.TrimSuffix(old, []byte("\n")))
		} else if !put {
			lines, put = append(lines, line), true
		}
	}
	if !put {
		lines = append(lines, line)
	}
	return append(bytes.Join(lines, []byte("\n")), '\n')
}
