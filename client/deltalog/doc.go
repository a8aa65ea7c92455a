// Package deltalog is the delta log in NATS JetStream as a [client.Trigger] reads it:
// for controllers that turn changes into keys without an index in between.
//
//	conn, err := deltalog.Connect(ctx, deltalog.Config{URL: "nats://127.0.0.1:4222"})
//	trigger, err := client.NewTrigger(queue, index, conn.Log(cfg), conn.Memory(), cfg)
//
// Deltaplane's own controllers run on it. A controller that has no address of NATS uses package
// client/controller instead, which needs those of the index and the queue alone.
//
// Who connects can read every collection of the log: NATS' accounts are what limits that.
package deltalog
