
-- Leases: a bit of "lines" says that a ready list may hold places. A line is
-- read from its head without taking; what was used is cut off at the end.
local tok0, groups, ngroups, gkeys, ngot = 0, {}, 0, {}, 0
local zadd, nz = {}, 0
local q = {} -- by level: places read so far, those of Redis first, then buf's
do
local function lineOf(l)
  local L = q[l]
  if not L then
    L = {n = 0, at = 1, places = {}, raws = {}, all = floor(lines / 2 ^ l) % 2 == 0, own = 0}
    q[l] = L
  end
  return L
end
-- fetch reads up to n more places of a line.
local function fetch(L, l, n)
  if not L.all then
    n = min(n, CHUNK)
    local got = call('LRANGE', KEYS[LINES + l], L.n, L.n + n - 1)
    if #got < n then L.all = true end
    if #got > 0 then
      local raws = batch(got)
      if L.n == 0 then
        L.places, L.raws = got, raws
      else
        for j = 1, #got do L.places[L.n + j], L.raws[L.n + j] = got[j], raws[j] end
      end
      L.n = L.n + #got
      return true
    end
  end
  local own = buf[l]
  if own and L.own < #own then
    local from = L.own
    n = min(n, #own - from)
    local places, have = L.places, L.n + from
    for j = 1, n do places[have + j] = own[from + j] end
    L.own = from + n
    return true
  end
  return false
end
-- head is the first live place of a line and its record, nil at its end.
local function head(l, n)
  local L = lineOf(l)
  while true do
    local key = L.places[L.at]
    if key then
      local f = nstale > 0 and l .. key
      if f and staleOf(f) > 0 then
        stalev[f] = stalev[f] - 1
        stalech[f] = true
        nstale = nstale - 1
      else
        local v = cur[key]
        if v == nil then v = L.raws[L.at] end
        if v and (type(v) == 'table' and v.s == READY or type(v) == 'string' and (byte(v) == 82 or byte(v) == 114)) then
          return key, v, L
        end
      end
      L.at = L.at + 1
    elseif not fetch(L, l, n) then
      return nil
    end
  end
end
local function readyAt(v)
  if type(v) == 'table' then return v.rd end
  return (sunpack('>d', v, 13))
end
-- pick is the line that the next lease comes from, and whether by age.
local function pick(want)
  local top
  if granted % 8 == 7 then
    local at, oldest
    for l = 7, 0, -1 do
      if buf[l] or floor(lines / 2 ^ l) % 2 == 1 then
        local key, v = head(l, top and 8 or want)
        if key then
          local rd = readyAt(v)
          top = top or l
          if not at or rd < oldest then at, oldest = l, rd end
        end
      end
    end
    if at and now - oldest > aging then return at end
    return top
  end
  for l = 7, 0, -1 do
    if (buf[l] or floor(lines / 2 ^ l) % 2 == 1) and head(l, want) then return l end
  end
end

local want = 0
if nready > 0 and now >= hold and not paused then
  for t = 2, #takes, 3 do want = want + max(takes[t], 0) end
  want = min(want, nready)
  if want > 0 and qps > 0 then
    if away then
      want = min(want, away[1])
    else
      local n = 0
      while n < want and takeToken() do n = n + 1 end
      want = n
    end
  end
end
if want > 0 then
  -- With one line in use there is nothing to choose.
  local only, used = nil, 0
  for l = 0, 7 do
    if buf[l] or floor(lines / 2 ^ l) % 2 == 1 then only, used = l, used + 1 end
  end
  tok = max(tok + 1, now)
  tok0 = tok
  local lo = tok % 256
  local hi = sub(spack('>I8', tok), 1, 7)
  local t, left, dur, id, score, suffix, lastraw, group = -2, 0, 0, nil, nil, nil, nil, nil
  while want > 0 do
    local l, n = only, want
    if used > 1 then
      l = pick(want)
      n = granted % 8 == 7 and 1 or min(want, 7 - granted % 8)
    end
    if not l or not head(l, want) then break end
    for _ = 1, n do
      local key, v, L = head(l, want)
      if not key then break end
      while left <= 0 do
        t = t + 3
        left, dur = takes[t + 1], takes[t + 2]
        if left > 0 then
          id = holders.take(takes[t], now + dur, firstlease)
          score = S(now + dur)
          if firstlease == 0 or now + dur < firstlease then firstlease = now + dur end
          suffix, lastraw = {}, nil
        end
      end
      left = left - 1
      if lo == 256 then
        lo = 0
        hi = sub(spack('>I8', tok), 1, 7)
      end
      local raw
      if type(v) == 'string' and byte(v) == 82 then
        raw = v
        local s = suffix[raw]
        if not s then
          local a = sunpack('>H', raw, 3)
          s = spack('>BH', byte(raw, 2), min(a + 1, 65535)) .. id .. sub(raw, 5)
          suffix[raw] = s
        end
        cur[key] = 'L' .. hi .. char(lo) .. s
      else
        local r = open(key, v)
        raw = torec(r)
        r.s, r.t, r.h = LEASED, hi .. char(lo), id
        r.a = min(r.a + 1, 65535)
        if r.x then r.x.t = nil end
      end
      if raw == lastraw then
        groups[group] = groups[group] + 1
      else
        groups[ngroups + 1], groups[ngroups + 2], groups[ngroups + 3], groups[ngroups + 4] = (t - 1) / 3, 1, dur, raw
        group, lastraw = ngroups + 2, raw
        ngroups = ngroups + 4
      end
      ngot = ngot + 1
      gkeys[ngot] = key
      zadd[nz + 1], zadd[nz + 2] = score, key
      nz = nz + 2
      L.at = L.at + 1
      lo, tok, granted = lo + 1, tok + 1, granted + 1
      want = want - 1
    end
  end
  tok = tok - 1
  if ngot == 0 then tok = tok0 - 1 end
  nready, nleased = nready - ngot, nleased + ngot
end
end
