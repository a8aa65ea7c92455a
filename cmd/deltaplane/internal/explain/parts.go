package explain

import (
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/explain"
)

// parts are the services that are asked.
type parts struct{ cli.DialFlags }

func (p *parts) register(cmd *cobra.Command) {
	p.Register(cmd.Flags())
	p.Timeout = explain.Timeout
	cmd.Flags().Lookup("timeout").DefValue = explain.Timeout.String()
}

// with has the services asked.
func (p *parts) with(ask func(*explain.Parts) error) error {
	config := p.Config
	config.Extra = slices.Concat(config.Extra, []grpc.DialOption{grpc.WithDisableRetry()}) // what refuses at once did not answer
	asked := &explain.Parts{Timeout: p.Timeout, Message: cli.Message}
	for _, one := range []struct {
		part    *explain.Part
		address string
	}{{&asked.Queue, p.Queue}, {&asked.Index, p.Index}, {&asked.Reflector, p.Reflector}} {
		conn, err := cli.Connect(one.address, config)
		if err != nil {
			return err
		}
		defer conn.Close()
		*one.part = explain.Part{Address: one.address, Conn: conn}
	}
	return ask(asked)
}
