
-- Write. Lines first: what was used is cut off, what was pushed and not leased
-- goes behind.
for l = 0, 7 do
  local L, own, bit = q[l], buf[l], 2 ^ l
  local on = floor(lines / bit) % 2 == 1
  local from = 1
  if L then
    local used = min(L.at - 1, L.n)
    if used > 0 then call('LTRIM', KEYS[LINES + l], used, -1) end
    if L.all and used == L.n and on then on = false; lines = lines - bit end
    from = max(L.at - 1 - L.n, 0) + 1
  end
  if own and from <= #own then
    for s = from, #own, CHUNK do call('RPUSH', KEYS[LINES + l], unpack(own, s, min(s + CHUNK - 1, #own))) end
    if not on then lines = lines + bit end
  end
end
if lines == 0 then nready = 0 end
if nready == 0 and lines ~= 0 then -- only given up places are left
  for l = 0, 7 do
    if floor(lines / 2 ^ l) % 2 == 1 then call('UNLINK', KEYS[LINES + l]) end
  end
  lines = 0
end
if lines == 0 and nstale > 0 then
  call('UNLINK', stale)
  nstale = 0
elseif next(stalech) then
  for f in next, stalech do
    if stalev[f] > 0 then call('HSET', stale, f, stalev[f]) else call('HDEL', stale, f) end
  end
end
if nz > 0 then
  for s = 1, nz, 2 * CHUNK do call('ZADD', lease, unpack(zadd, s, min(s + 2 * CHUNK - 1, nz))) end
end

-- Barriers and expectations whose time is over.
if next(bch) then ngc = ngc + zwrite(gc, bch, function(r) return r.x and r.x.bu end, 'b'); bch = {} end
if next(ech) then ngc = ngc + zwrite(gc, ech, function(r) return r.x and r.x.es and r.x.es + EXPECT end, 'e'); ech = {} end
if ngc > 0 then
  local over = call('ZRANGEBYSCORE', gc, '-inf', S(now), 'LIMIT', 0, SWEEP)
  if #over > 0 then
    ngc = ngc - chunked('ZREM', gc, over)
    local list = {}
    for j = 1, #over do list[j] = sub(over[j], 2) end
    local raws = batch(list)
    for j = 1, #list do
      local r = open(list[j], raws[j])
      if r.x then
        if byte(over[j]) == 98 then r.x.b, r.x.bu = nil, nil
        else r.x.e, r.x.eo, r.x.et, r.x.es = nil, nil, nil, nil end
      end
    end
  end
end

-- Back-off entries.
if next(boch) then
  for id in next, boch do
    local e = bov[id]
    if e then
      nbo = nbo + call('ZADD', boz, S(e[2]), id)
      call('HSET', bo, id, spack('>dd', e[1], e[2]))
    else
      nbo = nbo - call('ZREM', boz, id)
      call('HDEL', bo, id)
    end
  end
end
if nbo > 0 then
  local over = call('ZRANGEBYSCORE', boz, '-inf', S(now - conf().expire - 1), 'LIMIT', 0, SWEEP)
  if #over > 0 then
    nbo = nbo - chunked('ZREM', boz, over)
    chunked('HDEL', bo, over)
    if gcReplies then
      for j = 1, #gcReplies do E[gcReplies[j]] = #over end
    end
  end
end

if nleased == 0 and nhold > 0 then
  call('UNLINK', hid, hz)
  nhold = 0
else
  holders.flush()
end

-- Records that changed, and the control record.
local set, ns, del, nd = {}, 0, {}, 0
for b = 1, #batches, 2 do
  local list, was = batches[b], batches[b + 1]
  for j = 1, #list do
    local key = list[j]
    local v = cur[key]
    if v ~= nil then
      if type(v) == 'table' then v = torec(v); cur[key] = v end
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
local changed = spack(CONTROL, hold, tok, (closed and 1 or 0) + (paused and 2 or 0), nready, ndirty, nleased, ndelayed, ndead,
  ngc, nstale, nhold, granted, lines, ttat, nbo, ver, run)
if tatsChanged then
  for j = 1, #tats do tats[j] = spack('>d', tats[j]) end
  changed = changed .. concat(tats)
else
  changed = changed .. sub(control, tatsAt)
end
if changed ~= control then set[ns + 1], set[ns + 2] = '', changed; ns = ns + 2 end
for s = 1, ns, 2 * CHUNK do call('HSET', st, unpack(set, s, min(s + 2 * CHUNK - 1, ns))) end
if nd > 0 then chunked('HDEL', st, del) end

if firstlease ~= 0 and (nextdue == 0 or firstlease < nextdue) then nextdue = firstlease end
if hold > now and (nextdue == 0 or hold < nextdue) then nextdue = hold end
if qps > 0 and not away and not paused and nready > 0 then
  local at = ceil(tokenAt())
  if at > now and (nextdue == 0 or at < nextdue) then nextdue = at end
end
if nready > 0 and not hadready then call('PUBLISH', conf().channel, conf().notice) end

local answer = mpack(seq, now, nextdue, nready, ndelayed, nleased, ndirty, ndead,
  added, retried, promoted, expired, buried, spent, concat(R), E, tok0, groups, gkeys)
if nops > 0 or ngot > 0 then call('SET', rq, answer, 'PX', 120000) end
return answer
