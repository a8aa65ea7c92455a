// Package rpc is how Deltaplane's processes speak gRPC to one another: one
// server builder, one dialler, one mapping between errors and statuses.
//
// A service does this and nothing more:
//
//	srv, err := rpc.NewServer(cfg.RPC, rpc.Options{Log: log, Registry: reg, Rules: rules})
//	queuev1.RegisterQueueServiceServer(srv, impl)
//	srv.SetServing(queuev1.QueueService_ServiceDesc.ServiceName, true)
//	err = srv.Run(ctx, parts...) // until ctx ends; nil on a clean stop
//
// A stop is gentle: health turns NOT_SERVING, calls are answered for a while
// yet, streams are instructed to go elsewhere ([Server.Stopping]), and only then do
// the parts end that calls need.
//
// Handlers return plain Go errors. The server turns them into statuses by the
// rules given to it (see [Status]); what no rule knows becomes a bare Internal
// whose cause is logged and never sent. Clients read a status back with
// [Reason], [Code], [RetryDelay] and [Violations].
package rpc
