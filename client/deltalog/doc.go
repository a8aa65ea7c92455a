// Package deltalog is the delta log in NATS JetStream as a [client.Trigger] reads it:
// for controllers that turn changes into keys without an index in between.
//
//	conn, err := deltalog.Connect(ctx, deltalog.Config{URL: "nats://127.0.0.1:4222"})
//	trigger, err := client.NewTrigger(queue, index, conn.Log(cfg), conn.Memory(), cfg)
//
// Deltaplane's own controllers run on it. Package client/controller needs the addresses of the
// index and the queue alone, and follows the log where it is given a connection.
//
// Who connects can read every collection of the log: NATS' accounts are what limits that.
package deltalog
