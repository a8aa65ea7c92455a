// Package redis keeps queues in Redis (6.2 or newer) or Valkey, shared by any
// number of servers: one Lua script per transaction, all keys of a partition under one
// hash tag and declared to the script, every deadline by Redis' own clock.
// lua/control.lua and lua/record.lua tell what is stored, keys in script.go
// under which names.
//
// # Where Redis is
//
// [Config.URL] names a Redis, its sentinels, or some nodes of a cluster. A transaction
// goes to the node that serves its partition's slot. The engine looks that node up
// again when a node says that the slot moved, or is gone, and waits for a slot that
// is being moved. Wake-ups are one channel, which in a cluster every node hears.
//
// # Restarts and failovers
//
// A transaction carries a number; when its reply is lost it is sent again, and the
// script answers what it answered. That is the only way anything is sent twice.
// A transaction that a broken connection still delivers after a later one of the same
// server is refused.
// A transaction also carries the run id of the Redis behind the connection: when that
// is another one than at the partition's last transaction — a restart, a failover, a
// slot that moved — leases are handed out only after one lease time, and
// [engine.Status] tells until when. The generation is made of the data's id and
// the run ids of all masters.
//
// A master that is cut off from its sentinels but not from a server goes on
// serving it until the sentinels reach it. Replicated queues hand out and
// acknowledge nothing there; for others, min-replicas-to-write 1 makes such a
// master refuse, and transactions are then tried until the new master is found.
//
// # Durability
//
// Memory: a transaction is answered when the master has done it. Fsync: the master
// runs with appendonly yes and appendfsync always, or has WAITAOF (Redis 7.2,
// Valkey), which then follows every transaction. Replicated: WAIT follows every transaction.
// An answer with its leases is held until that is reached, at most
// [Config.GiveUp]; after that the outcome is engine.ErrUnknown, with how many
// replicas have it. What cannot be reached is engine.ErrDurability, when a
// queue is configured and also at a transaction, when a failover led to a server that
// is set up otherwise. Where CONFIG GET is forbidden, as by many who run Redis
// for others, appendfsync cannot be seen: Fsync then needs WAITAOF.
//
// # What a Redis must be
//
// [Engine.Check] refuses by name: older than 6.2; another topology than
// configured; a replica; no Lua scripts; a user that may not do what scripts
// do ([Rules] are the ACL).
//
// A Redis that is full (maxmemory) refuses transactions that add, whole, with
// engine.ErrFull; all other transactions, reads, the checks and a server's start go on,
// so that what it holds can be worked off. The first write of a script decides
// which it is: Redis lets a script go on that began with a command that frees
// memory. That holds since 6.2 and in Valkey, without the flag allow-oom, which
// 6.2 could not read.
//
// A maxmemory-policy other than noeviction refuses transactions that add with
// engine.ErrEviction, unless [Config.AllowEviction]. Every such transaction asks for the
// policy inside the script, about 9 us of Redis' time (7.0, measured), so that no
// add is acknowledged once the policy was changed; asking every second would
// acknowledge a second's worth of keys that may be dropped.
package redis
