package stream

import (
	"slices"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/lease"
	"github.com/deltaplane/deltaplane/internal/stream/link"
	"github.com/deltaplane/deltaplane/internal/stream/read"
)

// Permissions are the subjects that a NATS user needs for one service, as the configuration of
// nats-server takes them.
type Permissions struct{ Publish, Subscribe []string }

// What reads alone: also another service's bucket, and nothing that is not kept.
var reading = []string{
	"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.>",
	"$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.DELETE.>", "$JS.API.CONSUMER.MSG.NEXT.>", "$JS.FC.>",
}

// ReadPermissions are those of a service that reads logs, connects by a name and writes some
// buckets. It cannot append to a log, nor make or delete one.
func ReadPermissions(name string, buckets ...string) Permissions {
	p := Permissions{Publish: slices.Clone(reading), Subscribe: []string{link.Inboxes(name) + ".>"}}
	for _, bucket := range buckets {
		p.Publish = append(p.Publish, kv.Subjects(bucket)...)
	}
	return p
}

// ConsumePermissions are those of a service that shares logs with its replicas ([Conn.Consume])
// too.
func ConsumePermissions(name string, buckets ...string) Permissions {
	p := ReadPermissions(name, append(buckets, read.Buckets...)...)
	p.Publish = append(p.Publish, "$JS.ACK.>")
	return p
}

// WritePermissions are those of a service that writes logs and elects who does.
func WritePermissions(name string, buckets ...string) Permissions {
	p := ReadPermissions(name, append(buckets, lease.Buckets...)...)
	p.Publish = append(p.Publish, "d.>", "c.>",
		"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "$JS.API.STREAM.PURGE.*", "$JS.API.STREAM.DELETE.*")
	for _, subject := range slices.Concat(lease.Subjects, []string{link.Inboxes(lease.ConnectionName(name)) + ".>"}) {
		p.Publish = append(p.Publish, subject) // answers to a ping of another replica are published to its inbox
		p.Subscribe = append(p.Subscribe, subject)
	}
	return p
}
