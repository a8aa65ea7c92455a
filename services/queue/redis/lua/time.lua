
-- What may be evicted is not taken in. It is asked in every transaction that grows, so
-- that nothing is acknowledged once the policy is another.
if grows and not evictable then
  local policy = string.match(call('INFO', 'memory'), 'maxmemory_policy:([%w-]+)')
  if policy and policy ~= 'noeviction' then return redis.error_reply('DPEVICT ' .. policy) end
end

-- From here on things are written. The first write decides about memory: a
-- transaction that grows is refused whole when Redis is full, any other is let
-- through. Neither of the two changes anything, and the second is left out
-- where the first write is of its sort anyway.
local nops = #keys - 1
if grows then
  call('SETRANGE', rq, 0, '')
elseif ngone == 0 and (nops > 0 or m.nready > 0 or run ~= run0 or shift ~= 0 or m.noted) then
  call('HDEL', stale, '')
end
if ngone > 0 then chunked('ZREM', lease, gone) end
step()
if G then G.writeTimes() end

-- first is when the first of a sorted set comes.
local function first(zset)
  local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
  return tonumber(head[2] or 0)
end
-- each takes out what has come and calls f with it; it sums what f returns.
local function each(zset, f)
  local list, n = call('ZRANGEBYSCORE', zset, '-inf', S(now), 'LIMIT', 0, SWEEP), 0
  chunked('ZREM', zset, list)
  local raws = batch(list)
  for j = 1, #list do n = n + (f(list[j], raws[j]) or 1) end
  return n
end
-- A server that has just come does not know whether the clock stepped. Those that
-- were there look, and put it right before a delay ends early.
local nextdue = m.ndelayed > 0 and first(dly) or 0
local asks = young == 2 and nextdue ~= 0 and nextdue <= now
if nextdue ~= 0 and nextdue <= now and not asks then
  m.promoted = each(dly, general().fallDue)
  nextdue = m.ndelayed > 0 and first(dly) or 0
end
local firstlease = m.nleased > 0 and first(lease) or 0
if firstlease ~= 0 and firstlease <= now and not young then
  m.expired = each(lease, general().expireLease)
  firstlease = m.nleased > 0 and first(lease) or 0
end
if firstlease == math.huge then firstlease = 0 end -- no held key has a deadline: an audit will find out why
