-- Creates a partition of a queue or replaces its configuration.
-- KEYS: meta, state hash. ARGV: configuration, its version, partitions,
-- microseconds without leases when it is created.
local meta, st = KEYS[1], KEYS[2]
local was = redis.call('HMGET', meta, 'ver', 'cfg', 'parts')
local control = redis.call('HGET', st, '')
if not was[1] or not control then
  local T = redis.call('TIME')
  local hold = 0
  if tonumber(ARGV[4]) > 0 then hold = T[1] * 1000000 + T[2] + tonumber(ARGV[4]) end
  redis.call('HSET', meta, 'cfg', ARGV[1], 'ver', ARGV[2], 'parts', ARGV[3])
  redis.call('HSET', st, '', struct.pack(CONTROL, hold, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ARGV[2], ''))
  return {1}
end
if was[3] ~= ARGV[3] then return redis.error_reply('DPPARTS ' .. was[3]) end
if was[2] ~= ARGV[1] then
  -- Buckets and the dispatch limiter start full.
  local c = {struct.unpack(CONTROL, control)}
  c[14] = 0
  redis.call('HSET', meta, 'cfg', ARGV[1], 'ver', ARGV[2])
  redis.call('HSET', st, '', struct.pack(CONTROL, c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10],
    c[11], c[12], c[13], c[14], c[15], ARGV[2], c[17]))
end
return {0}
