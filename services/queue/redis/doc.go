// Package redis keeps queues in Redis (6.2 or newer), shared by any number of
// servers: one Lua script per turn, all of a queue's keys under one hash tag
// and declared to the script, every deadline by Redis' own clock.
//
//	{q}:st     hash   key -> state, level, attempt, times; with token and holder while leased
//	{q}:rdy0-7 lists  ready keys by level; places given up are counted in {q}:stale
//	{q}:dly    zset   due times        {q}:dlv   hash  levels of delayed keys
//	{q}:lease  zset   deadlines        {q}:fail  hash  failures
//	{q}:bar    hash   barriers         {q}:bex   zset  expiry of idle keys' barriers
//	{q}:eex    zset   when expectations are void
//	{q}:trc sav exp why dead           hashes: traces, saved state, expectations, reasons, dead keys
//	{q}:meta   hash   configuration, last token, run id of Redis, counts, buckets
//	{q}:rq:S   string the answer to server S's last turn
//
// A turn carries a number; when its reply is lost it is sent again, and the
// script answers what it answered. A turn also carries Redis' run id as the
// server knows it: when Redis was restarted or failed over, leases are handed
// out only after one lease time.
package redis
