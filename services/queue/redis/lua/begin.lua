local seq, ordered, skew, run, ver, grows, away, keys, runs, toks, args, takes, left, young, least, most, by, from = munpack(ARGV[1])
local maxLease, retention, maxRetries, absorb, reserveOnce, aging, qps, burst, maxProc, leaseFor, evictable, maxDeliveries = munpack(ARGV[2])

-- Transactions of one server come in the order of their numbers, all of one length. One
-- that came before is answered as it was then; one that was overtaken, because its
-- connection broke and it was sent again, may not be done any more.
if ordered then
  local head = mpack(seq)
  local last = call('GETRANGE', rq, 0, #head - 1)
  if last == head then return call('GET', rq) end
  if last > head then return redis.error_reply('DPLATE a later turn was done') end
end

-- keys[1] is '', the control record. vals[i] is what is stored of keys[i].
local vals
if #keys <= CHUNK then
  vals = call('HMGET', st, unpack(keys))
else
  vals = {}
  for s = 1, #keys, CHUNK do
    local some = call('HMGET', st, unpack(keys, s, min(s + CHUNK - 1, #keys)))
    for j = 1, #some do vals[#vals + 1] = some[j] end
  end
end
local control = vals[1]
if not control then return redis.error_reply('DPNOQUEUE no such queue') end
local m = {added = 0, retried = 0, promoted = 0, expired = 0, died = 0, spent = 0}
local tok, flags, ver0, run0, tatsAt
m.hold, tok, flags, m.nready, m.ndirty, m.nleased, m.ndelayed, m.ndead, m.ngc, m.nstale, m.nhold, m.granted, m.lines,
  m.ttat, m.nbo, m.used, ver0, run0, tatsAt = sunpack(CONTROL, control)
if ver0 ~= ver then return redis.error_reply('DPCONFIG the configuration changed') end

local T = call('TIME')
-- Behind the run is the offset to Redis' clock, where there is one. A transaction that
-- comes too early or too late by it has met a step, or was long on its way:
-- the server finds out, and gives what sets the clock right.
local off, shift = 0, 0
do
  local at = #run0 > 1 and string.find(run0, ' ', 1, true)
  if at then run0, off = sub(run0, 1, at - 1), tonumber(sub(run0, at + 1)) end
end
local now = T[1] * 1000000 + T[2] + skew + off
local right = (by or 0) + now
if by and from ~= off or least and (right < least or right > most) then
  return redis.error_reply('DPCLOCK ' .. S(now) .. ' ' .. S(off))
end
if by then now, off, shift = right, off + by, by end
-- After a restart or a loss leases may be worked on that nothing is known of
-- here: until the last that any living server granted has ended.
if run ~= run0 and run0 ~= '' then
  m.hold = max(m.hold, now + (left and max(left, leaseFor) or maxLease))
elseif left then
  m.hold = max(m.hold, now + left)
end
if ordered and (#keys > 1 or #takes > 0) and max(now - m.used, m.used - now) >= USE_US then
  m.used, m.noted = now, true
end
m.closed, m.paused, m.wide = flags % 2 == 1, flags % 4 >= 2, flags >= 4
local hadready = m.nready > 0

local cur = {} -- by key: what it became in this transaction, a record, a table or false; absent: nothing changed
local buf = {} -- by level: keys pushed in this transaction
local gone, ngone = {}, 0 -- keys whose lease ended and of which nothing is left
-- Keys that came up in this transaction, and what is stored of them, in pairs.
local batches = {keys, vals}
local function batch(list)
  local v = call('HMGET', st, unpack(list))
  batches[#batches + 1] = list
  batches[#batches + 1] = v
  return v
end

-- The answer: a status for each operation, and after a status above 127 what
-- else there is to say, in E.
local R, E = {}, {}
m.nr, m.ne = 0, 0

-- The dispatch limiter: when its next token is there, and taking it.
local function tokenAt() return max(m.ttat, now) - (burst - 1) * (1e6 / qps) end
local function takeToken()
  if tokenAt() > now then return false end
  m.ttat = max(m.ttat, now) + 1e6 / qps
  return true
end
