-- Creates a partition of a queue or replaces its configuration.
-- KEYS: meta, state hash. ARGV: configuration, its version, partitions,
-- microseconds without leases when it is created, skew of the clock, the
-- dispatch limiter's tokens a second (0: none) and burst, 1 for a partition but the first: it is made
-- sealed (see expire.lua), and stays so here.
local meta, st = KEYS[1], KEYS[2]
local function now()
  local T = redis.call('TIME')
  return T[1] * 1000000 + T[2] + tonumber(ARGV[5])
end
local function offset(run)
  local at = string.find(run, ' ', 1, true)
  return at and tonumber(string.sub(run, at + 1)) or 0
end
local was = redis.call('HMGET', meta, 'ver', 'cfg', 'parts', 'idle', 'seal')
local control = redis.call('HGET', st, '')
if not was[1] or not control then
  local hold = 0
  if tonumber(ARGV[4]) > 0 and not was[4] then hold = now() + tonumber(ARGV[4]) end
  redis.call('UNLINK', meta) -- it may say that the queue was deleted
  redis.call('HSET', meta, 'cfg', ARGV[1], 'ver', ARGV[2], 'parts', ARGV[3], 'born', ARGV[2])
  redis.call('HSET', st, '', struct.pack(CONTROL, hold, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, now(), ARGV[8] == '1' and '' or ARGV[2], ''))
  if ARGV[8] == '1' then redis.call('HSET', meta, 'seal', 'new ' .. string.format('%.0f', now())) end
  return {1, now()}
end
if was[3] ~= ARGV[3] then return redis.error_reply('DPPARTS ' .. was[3]) end
local sealed = was[5] and ARGV[8] == '1'
if was[2] ~= ARGV[1] then
  redis.call('HDEL', meta, sealed and '' or 'seal') -- the first write decides, see time.lua: a full Redis can be configured
  -- The limiter's buckets start full. A dispatch limiter of the same rate keeps
  -- its bucket; of another one it starts full, or empty when it was empty.
  local c = {struct.unpack(CONTROL, control)}
  local had, qps, burst = cjson.decode(was[2]).dispatch, tonumber(ARGV[6]), tonumber(ARGV[7])
  if not had or qps == 0 then
    c[14] = 0
  elseif had.qps ~= qps or had.burst ~= burst then
    local at = now() + offset(c[18])
    if math.max(c[14], at) - (had.burst - 1) * (1e6 / had.qps) > at then
      c[14] = at + burst * (1e6 / qps)
    else
      c[14] = 0
    end
  end
  redis.call('HSET', meta, 'cfg', ARGV[1], 'ver', ARGV[2])
  redis.call('HSET', st, '', struct.pack(CONTROL, c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10],
    c[11], c[12], c[13], c[14], c[15], now() + offset(c[18]), sealed and '' or ARGV[2], c[18]))
elseif was[5] and not sealed then -- it is wanted
  redis.call('HDEL', meta, 'seal')
  local c = {struct.unpack(CONTROL, control)}
  c[16], c[17] = now() + offset(c[18]), was[1]
  redis.call('HSET', st, '', struct.pack(CONTROL, unpack(c, 1, 18)) .. string.sub(control, c[19]))
end
return {0}
