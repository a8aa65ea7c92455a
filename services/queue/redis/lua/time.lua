
-- From here on things are written. The first write decides about memory: a
-- turn that grows is refused whole when Redis is full, any other is let
-- through. Neither of the two writes anything.
local nops = #keys - 1
if grows then call('SETRANGE', rq, 0, '') elseif nops > 0 then call('HDEL', stale, '') end
if ngone > 0 then chunked('ZREM', lease, gone) end
if next(lch) then zwrite(lease, lch, function(at) return at end, ''); lch = {} end
if next(uch) then zwrite(dly, uch, function(r) return r.x and r.x.u end, ''); uch = {} end

-- batches are keys that came up in this turn, each with what is stored of them.
-- None is longer than a chunk, but the first.
local batches = {keys, vals}
local function batch(list)
  local v = call('HMGET', st, unpack(list))
  batches[#batches + 1] = list
  batches[#batches + 1] = v
  return v
end

-- first is when the first of a sorted set comes; move does it for what came up.
local function first(zset)
  local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
  return tonumber(head[2] or 0)
end
local function due(zset)
  local list = call('ZRANGEBYSCORE', zset, '-inf', S(now), 'LIMIT', 0, SWEEP)
  chunked('ZREM', zset, list)
  return list, batch(list)
end

local nextdue = ndelayed > 0 and first(dly) or 0
if nextdue ~= 0 and nextdue <= now then
  local list, raws = due(dly)
  for j = 1, #list do
    local key = list[j]
    local r = open(key, raws[j])
    local l = r.x and r.x.ul or 4
    unschedule(key, r)
    enqueue(key, r, l)
    tidy(key, r)
  end
  promoted = #list
  uch = {}
  nextdue = ndelayed > 0 and first(dly) or 0
end

local firstlease = nleased > 0 and first(lease) or 0
if firstlease ~= 0 and firstlease <= now then
  local list, raws = due(lease)
  for j = 1, #list do
    local key = list[j]
    local r = open(key, raws[j])
    if r.s >= LEASED then requeue(key, r); expired = expired + 1 end
  end
  lch = {}
  firstlease = nleased > 0 and first(lease) or 0
end
