-- Creates a queue or replaces its configuration.
-- ARGV: configuration, its version, partitions, microseconds without leases when it is created.
local was = redis.call('HMGET', KEYS[1], 'ver', 'cfg', 'parts')
if not was[1] then
  local T = redis.call('TIME')
  local hold = 0
  if tonumber(ARGV[4]) > 0 then hold = T[1] * 1000000 + T[2] + tonumber(ARGV[4]) end
  redis.call('HSET', KEYS[1], 'cfg', ARGV[1], 'ver', ARGV[2], 'parts', ARGV[3], 'hold', string.format('%.0f', hold))
  return {1}
end
if was[3] ~= ARGV[3] then return redis.error_reply('DPPARTS ' .. was[3]) end
if was[2] ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'cfg', ARGV[1], 'ver', ARGV[2])
  local t = {}
  for i = 1, 32 do t[i] = 't' .. i end
  redis.call('HDEL', KEYS[1], unpack(t))
end
return {0}
