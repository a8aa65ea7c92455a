
-- Leases. A line is a ready list and behind it buf of its level; a bit of
-- m.lines says that the list may hold places. It is read from its head without
-- taking; what was used is cut off at the end.
local Q = {} -- by level: a line's places as far as read, n of them from the list, at the next one, own of buf
local function lineOf(l)
  local L = Q[l]
  if not L then
    L = {n = 0, at = 1, places = {}, raws = {}, all = floor(m.lines / 2 ^ l) % 2 == 0, own = 0}
    Q[l] = L
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
      if m.nstale > 0 then general().loadStale(got, l) end
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
  local own, from = buf[l], L.own
  if own and from < #own then
    n = min(n, #own - from)
    if L.n == 0 then -- nothing is put into buf any more
      L.places, n = own, #own - from
    else
      local places, have = L.places, L.n + from
      for j = 1, n do places[have + j] = own[from + j] end
    end
    L.own = from + n
    return true
  end
  return false
end
-- head is the first live place of a line and its record, nil at its end. A transaction
-- skips only so many given up places; then the next one comes at once.
local skipped = 0
local function head(L, l, n)
  while true do
    local at = L.at
    local key = L.places[at]
    if key then
      if m.nstale == 0 or not general().skips(key, l) then
        local v = cur[key]
        if v == nil then v = L.raws[at] end
        if v then
          if G and type(v) == 'table' then
            if v.s == READY then return key, v end
          else
            local k = byte(v)
            if k % 32 == 6 or k % 32 == 18 then return key, v, k end -- F, f, R or r
          end
        end
      end
      L.at = at + 1
      skipped = skipped + 1
      if skipped > SKIP then return nil end
    elseif not fetch(L, l, n) then
      return nil
    end
  end
end
-- pick is the line that the next lease comes from, where there is a choice:
-- every eighth lease is the longest waiting's, if that has waited too long.
local function pick(want)
  local top, at, oldest
  for l = 7, 0, -1 do
    if buf[l] or floor(m.lines / 2 ^ l) % 2 == 1 then
      local key, v = head(lineOf(l), l, top and 1 or want)
      if key then
        if m.granted % 8 ~= 7 then return l end
        local rd
        if type(v) == 'table' then rd = v.rd
        elseif byte(v) % 32 == 6 then rd = sunpack('>I7', v, 3) -- F or f
        else rd = sunpack('>I7', v, 12) end
        top = top or l
        if not at or rd < oldest then at, oldest = l, rd end
      end
    end
  end
  if at and now - oldest > aging then return at end
  return top
end
local want = 0
if m.nready > 0 and now >= m.hold and not m.paused then
  for t = 2, #takes, 3 do want = want + max(takes[t], 0) end
  want = min(want, m.nready)
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
local tok0, groups, ngroups, gkeys, ngot = 0, {}, 0, {}, 0
if want > 0 then
  local only, used = nil, 0
  for l = 0, 7 do
    if buf[l] or floor(m.lines / 2 ^ l) % 2 == 1 then only, used = l, used + 1 end
  end
  tok = max(tok + 1, now)
  tok0 = tok
  local lo, hi = tok % 256, sub(spack('>I8', tok), 1, 7)
  local zadd, ids = {}, nil
  local t, left, dur, id, score, suffix, lastraw, group = -2, 0, 0, nil, nil, nil, nil, nil
  local same, pre -- a plain record that many keys share, and what it becomes behind the token
  while want > 0 do
    local l, n = only, want
    if used > 1 then
      l = pick(want)
      n = m.granted % 8 == 7 and 1 or min(want, 7 - m.granted % 8)
    end
    local L, began = l and lineOf(l), ngot
    for _ = 1, l and n or 0 do
      local at, v, k = L.at, nil, nil
      local key = L.places[at]
      if key and m.nstale == 0 then
        v = cur[key]
        if v == nil then v = L.raws[at] end
      end
      if not v or v ~= same then
        key, v, k = head(L, l, want)
        if not key then break end
      end
      while left <= 0 do
        t = t + 3
        left, dur = takes[t + 1], takes[t + 2]
        if left > 0 then
          local name, at = takes[t], now + dur
          if not ids then -- look the holders up at once
            ids = {}
            local names, f = {}, {}
            for j = 1, m.nhold > 0 and #takes or 0, 3 do
              if not ids[takes[j]] then
                ids[takes[j]] = true
                names[#names + 1] = takes[j]
                f[#f + 1] = 'n' .. takes[j]
              end
            end
            ids = {}
            local known = #f > 0 and call('HMGET', hid, unpack(f)) or f
            for j = 1, #names do
              if known[j] then
                local h = sub(known[j], 1, 3)
                ids[names[j]] = h
                holder[h] = holder[h] or {names[j], (sunpack('>d', known[j], 4))}
              end
            end
          end
          id = ids[name]
          if not id then id = newHolder(name, firstlease); ids[name] = id end
          if at > holder[id][2] then holderUntil(id, at) end
          score = S(at)
          if firstlease == 0 or at < firstlease then firstlease = at end
          suffix, lastraw = {}, nil
          if v == same then k = byte(v) end
          same = nil
        end
      end
      left = left - 1
      if lo == 256 then
        lo = 0
        hi = sub(spack('>I8', tok), 1, 7)
        if v == same then k = byte(v) end
        same = nil
      end
      local raw = v
      if v == same then
        cur[key] = pre .. char(lo) .. suffix[v]
      elseif k then
        local s = suffix[raw]
        if not s then
          if k % 32 == 6 then
            local added = sub(raw, 3, 9)
            s = sub(raw, 2, 2) .. '\0\1' .. id .. added .. added
          else
            local a = sunpack('>H', raw, 3)
            s = spack('>BH', byte(raw, 2), min(a + 1, 65535)) .. id .. sub(raw, 5, 18)
          end
        end
        if k < 97 then
          suffix[raw] = s
          same, pre = raw, 'L' .. hi
          cur[key] = pre .. char(lo) .. s
        else -- the traces go with the lease
          local n, p = sunpack('>I3', raw, k == 102 and 10 or 19)
          if p + n > #raw then cur[key] = 'L' .. hi .. char(lo) .. s
          else cur[key] = 'l' .. hi .. char(lo) .. s .. '\0\0\0' .. sub(raw, p + n) end
        end
      else
        raw = general().lease(key, v, hi .. char(lo), id)
      end
      if raw == lastraw then
        groups[group] = groups[group] + 1
      else
        groups[ngroups + 1], groups[ngroups + 2], groups[ngroups + 3], groups[ngroups + 4] = (t - 1) / 3, 1, dur, raw
        group, lastraw = ngroups + 2, raw
        ngroups = ngroups + 4
      end
      zadd[2 * ngot + 1], zadd[2 * ngot + 2] = score, key
      ngot = ngot + 1
      gkeys[ngot] = key
      L.at = L.at + 1
      lo, tok = lo + 1, tok + 1
    end
    local n = ngot - began
    if n == 0 then break end -- no line has a live place: finish repairs the count
    m.granted, want = m.granted + n, want - n
  end
  tok = tok - 1
  m.nready, m.nleased = m.nready - ngot, m.nleased + ngot
  if ngot > 0 then
    if not m.wide and m.nleased > NARROW then
      m.wide = true
      zadd[2 * ngot + 1], zadd[2 * ngot + 2] = 'inf', WIDE
    end
    chunked('ZADD', lease, zadd)
  end
end
