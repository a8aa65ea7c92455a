
-- Lines: what was used is cut off, what was pushed and not leased goes behind.
for l = 0, 7 do
  local L, own, bit = Q[l], buf[l], 2 ^ l
  if L or own then
    local on, from = floor(m.lines / bit) % 2 == 1, 1
    if L then
      local used = min(L.at - 1, L.n)
      if used > 0 then call('LTRIM', KEYS[LINES + l], used, -1) end
      if L.all and used == L.n and on then on = false; m.lines = m.lines - bit end
      from = max(L.at - 1 - L.n, 0) + 1
    end
    if own and from <= #own then
      for s = from, #own, CHUNK do call('RPUSH', KEYS[LINES + l], unpack(own, s, min(s + CHUNK - 1, #own))) end
      if not on then m.lines = m.lines + bit end
    end
  end
end
if m.lines == 0 then m.nready = 0 end -- else the count was wrong
if m.nready == 0 and m.lines ~= 0 then -- only given up places are left
  for l = 0, 7 do
    if floor(m.lines / 2 ^ l) % 2 == 1 then call('UNLINK', KEYS[LINES + l]) end
  end
  m.lines = 0
end
if m.lines == 0 and m.nstale > 0 then
  call('UNLINK', stale)
  m.nstale = 0
elseif G then
  G.writeStale()
end

-- What was kept for a time.
if G then G.writeExpiries() end
if m.ngc > 0 then
  local most = nops > 0 and SWEEP or 4 * SWEEP -- nobody waits for a transaction without operations
  local over = call('ZRANGEBYSCORE', gc, '-inf', S(now), 'LIMIT', 0, most)
  if #over > 0 then
    m.ngc = m.ngc - chunked('ZREM', gc, over)
    local list = {}
    for j = 1, #over do list[j] = sub(over[j], 2) end
    local raws = batch(list)
    for j = 1, #over do general().kept(over[j], raws[j]) end
  end
end
if m.nbo > 0 or G and G.backoff then general().sweepBackoff() end
if m.nleased == 0 and m.nhold > 0 then
  call('UNLINK', lease, hid, hz)
  m.nhold, m.wide, m.ndirty = 0, false, 0
elseif late then
  for id, h in next, late do
    call('HSET', hid, 'n' .. h[1], id .. spack('>d', h[2]), 'i' .. id, h[1])
    call('ZADD', hz, S(h[2]), id)
  end
end

-- Records that changed, and the control record.
local set, ns, del, nd = {}, 0, {}, 0
for b = 1, #batches, 2 do
  local list, was = batches[b], batches[b + 1]
  for j = 1, #list do
    local key = list[j]
    local v = cur[key]
    if v ~= nil then
      if G and type(v) == 'table' then v = G.torec(v); cur[key] = v end
      if v ~= was[j] then
        if v then
          set[ns + 1], set[ns + 2] = key, v
          ns = ns + 2
        else
          nd = nd + 1
          del[nd] = key
        end
      end
    end
  end
end
local changed = spack(CONTROL, m.hold, tok, (m.closed and 1 or 0) + (m.paused and 2 or 0) + (m.wide and 4 or 0), m.nready, m.ndirty, m.nleased,
  m.ndelayed, m.ndead, m.ngc, m.nstale, m.nhold, m.granted, m.lines, m.ttat, m.nbo, m.used, ver, off == 0 and run or run .. ' ' .. S(off))
if G and G.tats then
  for j = 1, #G.tats do changed = changed .. spack('>d', G.tats[j]) end
else
  changed = changed .. sub(control, tatsAt)
end
if changed ~= control then set[ns + 1], set[ns + 2] = '', changed; ns = ns + 2 end
if ns > 0 then chunked('HSET', st, set) end
if nd > 0 then chunked('HDEL', st, del) end

if firstlease ~= 0 and not young and (nextdue == 0 or firstlease < nextdue) then nextdue = firstlease end
if m.hold > now and (nextdue == 0 or m.hold < nextdue) then nextdue = m.hold end
if qps > 0 and not away and not m.paused and m.nready > 0 then
  local at = ceil(tokenAt())
  if at > now and (nextdue == 0 or at < nextdue) then nextdue = at end
end
if skipped > SKIP and m.nready > 0 then nextdue = now end
local nextsweep = 0
if nops == 0 then
  if m.ngc > 0 then nextsweep = first(gc) end
  if m.nbo > 0 then
    local at = general().nextEntry()
    if nextsweep == 0 or at < nextsweep then nextsweep = at end
  end
end
if asks or m.nready > 0 and not hadready then
  local channel, notice = munpack(ARGV[3])
  call('PUBLISH', channel, notice)
end

local answer = mpack(seq, now, nextdue, m.nready, m.ndelayed, m.nleased, m.ndirty, m.ndead,
  m.added, m.retried, m.promoted, m.expired, m.died, m.spent, nextsweep, concat(R), E, tok0, groups, gkeys, shift, off)
if ordered and (nops > 0 or ngot > 0) then call('SET', rq, answer, 'PX', ANSWER_MS) end
return answer
end
return transact()
