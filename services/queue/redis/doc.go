// Package redis keeps queues in Redis (6.2 or newer) or Valkey, shared by any
// number of servers: one Lua script per turn, all keys of a partition under one
// hash tag and declared to the script, every deadline by Redis' own clock.
// lua/control.lua and lua/record.lua tell what is stored, keys in script.go
// under which names.
//
// # Where Redis is
//
// [Config.URL] names a Redis, its sentinels, or some nodes of a cluster. A turn
// goes to the node that serves its partition's slot; where that is is looked up
// anew when a node says so or is gone. A slot that is being moved is waited
// for. Wake-ups are one channel, which in a cluster every node hears.
//
// # Restarts and failovers
//
// A turn carries a number; when its reply is lost it is sent again, and the
// script answers what it answered. That is the only way anything is sent twice.
// A turn that a broken connection still delivers after a later one of the same
// server is refused.
// A turn also carries the run id of the Redis behind the connection: when that
// is another one than at the partition's last turn — a restart, a failover, a
// slot that moved — leases are handed out only after one lease time, and
// [engine.Status] tells until when. The generation is made of the data's id and
// the run ids of all masters.
//
// A master that is cut off from its sentinels but not from a server goes on
// serving it until the sentinels reach it. Replicated queues hand out and
// acknowledge nothing there; for others, min-replicas-to-write 1 makes such a
// master refuse, and turns are then tried until the new master is found.
//
// # Durability
//
// Memory: a turn is answered when the master has done it. Fsync: the master
// runs with appendonly yes and appendfsync always, or has WAITAOF (Redis 7.2,
// Valkey), which then follows every turn. Replicated: WAIT follows every turn.
// An answer with its leases is held until that is reached, at most
// [Config.GiveUp]; after that the outcome is engine.ErrUnknown, with how many
// replicas have it. What cannot be reached is engine.ErrDurability, when a
// queue is configured and also at a turn, when a failover led to a server that
// is set up otherwise. Where CONFIG GET is forbidden, as by many who run Redis
// for others, appendfsync cannot be seen: Fsync then needs WAITAOF.
//
// # What a Redis must be
//
// [Engine.Check] refuses by name: older than 6.2; another topology than
// configured; a replica; no Lua scripts; a user that may not do what scripts
// do ([Rules] are the ACL); a maxmemory-policy other than noeviction, unless
// [Config.AllowEviction]. A Redis that is full answers engine.ErrFull to what
// would make it grow.
package redis
