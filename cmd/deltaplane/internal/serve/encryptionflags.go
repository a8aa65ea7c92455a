package serve

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/seal"
)

// encryptionFlags say what is encrypted in the log and in checkpoints.
type encryptionFlags struct {
	keyFile   string
	resources []string
}

func (e *encryptionFlags) register(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionSecurity)()
	flags.StringVar(&e.keyFile, "encryption-key-file", "", `file of keys for payloads in the log and for checkpoints, read again when it changes: 32 bytes in
base64 a line, of which the first encrypts and all decrypt (default: nothing is encrypted)`)
	flags.StringSliceVar(&e.resources, "encrypted-resources", nil, "`resources`, as resource or resource.group, whose payloads are encrypted in the log, and given only to\ncallers who may get them (default secrets)")
}

// policy opens the file of keys.
func (e *encryptionFlags) policy() (seal.Policy, error) {
	p := seal.Policy{Resources: e.resources}
	if e.keyFile != "" {
		var err error
		if p.Keys, err = seal.Open(e.keyFile); err != nil {
			return p, fmt.Errorf("--encryption-key-file: %w", err)
		}
	} else if len(e.resources) > 0 {
		return p, errors.New("--encrypted-resources needs --encryption-key-file")
	}
	if err := p.Validate(); err != nil {
		return p, fmt.Errorf("--encrypted-resources: %w", err)
	}
	return p, nil
}
