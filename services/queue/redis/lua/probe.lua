-- Does once what transactions do, on keys that it deletes afterwards. A user
-- without the rights is refused here, before any transaction is half done.
-- KEYS: a hash, a list, a sorted set, a string. ARGV: the channel, a message.
local h, l, z, s = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call = redis.call
call('TIME')
call('INFO', 'memory')
call('HDEL', h, 'a') -- what frees memory comes first: then a full Redis lets the rest through
call('HSET', h, 'a', '1')
call('HGET', h, 'a')
call('HMGET', h, 'a', 'b')
call('HEXISTS', h, 'a')
call('HSCAN', h, 0, 'COUNT', 64)
call('RPUSH', l, 'a')
call('LRANGE', l, 0, 0)
call('LTRIM', l, 1, -1)
call('ZADD', z, 1, 'a')
call('ZSCORE', z, 'a')
call('ZCARD', z)
call('ZRANGE', z, 0, 0)
call('ZRANGEBYSCORE', z, '-inf', '+inf')
call('ZREM', z, 'a')
call('SET', s, 'a', 'PX', 1000)
call('SETRANGE', s, 0, 'b')
call('GET', s)
call('GETRANGE', s, 0, 0)
call('PEXPIRE', s, 1000)
call('UNLINK', h, l, z, s)
call('PUBLISH', ARGV[1], ARGV[2])
return 1
