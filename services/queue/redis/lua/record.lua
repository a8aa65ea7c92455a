
-- general makes what operations that are not plain need.
local G
local function makeGeneral()
local reply, say, g = nil, nil, {}

-- Records. The first byte is the kind:
--   F ready, never leased, since it was added: level(1) added(7)
--   R ready   level(1) attempt(2) added(7) ready(7)
--   L leased  token(8) level(1) attempt(2) holder(3) added(7) ready(7)
--   D dirty   as L, then the next run's level(1) and when it was added(7)
--   f, r, l, d  the same with more behind it
--   i         neither ready nor leased: more only
-- so that, with what Redis puts around it, a plain one takes 16 or 32 bytes.
-- More begins with the list of traces, packed behind its length(3), so that a
-- lease can take it away unread; then, if there is any of it, a packed table:
--   f  failures        u  due time, ul its level, ub set by the limiter, uo by the add of this name
--   b  barrier         bu until when it is kept (absent: while the key is ready or held)
--   v  saved bytes     w  reason          x  1 when dead
--   h  the last sessions that held the key and did not settle it
--   e  expected names, eo their owner, et the token, es when they were stored
local function unrec(raw)
  if not raw then return {s = IDLE} end
  local k = byte(raw)
  local r, pos
  if k == 70 or k == 102 then
    local l, ad, p = sunpack('>BI7', raw, 2)
    r, pos = {s = READY, l = l, a = 0, ad = ad, rd = ad}, p
  elseif k == 82 or k == 114 then
    local l, a, ad, rd, p = sunpack('>BHI7I7', raw, 2)
    r, pos = {s = READY, l = l, a = a, ad = ad, rd = rd}, p
  elseif k == 105 then
    r, pos = {s = IDLE}, 2
  else
    local l, a = sunpack('>BH', raw, 10)
    local ad, rd, p = sunpack('>I7I7', raw, 16)
    r, pos = {s = LEASED, t = sub(raw, 2, 9), l = l, a = a, h = sub(raw, 13, 15), ad = ad, rd = rd}, p
    if k == 68 or k == 100 then
      r.s = DIRTY
      r.g, r.di, pos = sunpack('>BI7', raw, p)
    end
  end
  if k > 96 then
    local n, p = sunpack('>I3', raw, pos)
    local x = p + n <= #raw and munpack(sub(raw, p + n)) or {}
    if n > 0 then x.t = munpack(sub(raw, p, p + n - 1)) end
    r.x = x
  end
  return r
end
local function torec(r)
  local x = r.x
  local more = x and next(x) ~= nil
  local s, raw = r.s, nil
  if s == IDLE then
    if not more then return false end
    raw = 'i'
  elseif s == READY then
    if r.a == 0 and r.ad == r.rd then
      raw = spack('>BBI7', more and 102 or 70, r.l, r.ad)
    else
      raw = spack('>BBHI7I7', more and 114 or 82, r.l, r.a, r.ad, r.rd)
    end
  else
    raw = (s == LEASED and (more and 'l' or 'L') or (more and 'd' or 'D'))
      .. r.t .. spack('>BH', r.l, r.a) .. r.h .. spack('>I7I7', r.ad, r.rd)
    if s == DIRTY then raw = raw .. spack('>BI7', r.g, r.di) end
  end
  if not more then return raw end
  local t = x.t
  if not t then return raw .. '\0\0\0' .. mpack(x) end
  t = mpack(t)
  raw = raw .. spack('>I3', #t) .. t
  if next(x, next(x)) == nil then return raw end
  t, x.t = x.t, nil
  raw = raw .. mpack(x)
  x.t = t
  return raw
end
-- open gives the table of a key whose stored record is raw.
local function open(key, raw)
  local v = cur[key]
  if type(v) == 'table' then return v end
  if v == nil then v = raw end
  v = unrec(v)
  cur[key] = v
  return v
end
local function more(r)
  local x = r.x
  if not x then x = {}; r.x = x end
  return x
end

-- Members of sorted sets that changed: by key its new deadline or false, and
-- the tables of keys whose due time, barrier or expectations changed.
local lch, uch, bch, ech = {}, {}, {}, {}
local function zwrite(zset, ch, score, prefix)
  local set, del, n = {}, {}, 0
  for key, r in next, ch do
    local at = score(r)
    if at then set[#set + 1] = S(at); set[#set + 1] = prefix .. key else del[#del + 1] = prefix .. key end
    ch[key] = nil
  end
  if #set > 0 then n = chunked('ZADD', zset, set) end
  if #del > 0 then n = n - chunked('ZREM', zset, del) end
  return n
end
-- What operations changed, before it is asked what time did; and what was kept
-- past its time, at the end.
function g.writeTimes()
  if next(lch) then zwrite(lease, lch, function(at) return at end, '') end
  if next(uch) then zwrite(dly, uch, function(r) return r.x and r.x.u end, '') end
end
function g.writeExpiries()
  if next(bch) then m.ngc = m.ngc + zwrite(gc, bch, function(r) return r.x and r.x.bu end, 'b') end
  if next(ech) then m.ngc = m.ngc + zwrite(gc, ech, function(r) return r.x and r.x.es and r.x.es + EXPECT end, 'e') end
end

-- A place in line is given up by counting: the oldest places of a key in a
-- line are skipped when they are reached.
local stalev, stalech = {}, {}
local function staleOf(f)
  local n = stalev[f]
  if not n then
    n = m.nstale > 0 and tonumber(call('HGET', stale, f) or 0) or 0
    stalev[f] = n
  end
  return n
end
local function giveUp(key, l)
  local f = l .. key
  stalev[f] = staleOf(f) + 1
  stalech[f] = true
  m.nstale = m.nstale + 1
end
function g.loadStale(places, l)
  local f = {}
  for j = 1, #places do f[j] = l .. places[j] end
  local counts = call('HMGET', stale, unpack(f))
  for j = 1, #f do
    if not stalev[f[j]] then stalev[f[j]] = tonumber(counts[j] or 0) end
  end
end
-- skips says whether a place is to be skipped, once.
function g.skips(key, l)
  local f = l .. key
  local n = staleOf(f)
  if n == 0 then return false end
  stalev[f] = n - 1
  stalech[f] = true
  m.nstale = m.nstale - 1
  return true
end
function g.writeStale()
  local set, del = {}, {}
  for f in next, stalech do
    local n = stalev[f]
    if n > 0 then set[#set + 1] = f; set[#set + 1] = n else del[#del + 1] = f end
  end
  chunked('HSET', stale, set)
  chunked('HDEL', stale, del)
end

local function line(key, l)
  local q = buf[l]
  if q then q[#q + 1] = key else buf[l] = {key} end
end
local function push(key, r, l)
  r.s, r.l, r.rd = READY, l, now
  m.nready = m.nready + 1
  line(key, l)
end

-- Barriers are a line "collection epoch rv" each, sorted.
local MARK = '(%S+) (%d+) (%d+)\n'
local function rvcmp(a, b)
  if #a ~= #b then return #a < #b and -1 or 1 end
  if a == b then return 0 end
  return a < b and -1 or 1
end
local function markcmp(ae, ar, be, br)
  if ae ~= '0' and be ~= '0' and ae ~= be then return rvcmp(ae, be) end
  return rvcmp(ar, br)
end
local function merge(into, s)
  for c, e, rv in string.gmatch(s, MARK) do
    local o = into[c]
    if not o then into[c] = {e, rv}
    elseif markcmp(e, rv, o[1], o[2]) > 0 then into[c] = {e ~= '0' and e or o[1], rv} end
  end
  return into
end
local function join(marks)
  local names, out = {}, {}
  for c in next, marks do names[#names + 1] = c end
  table.sort(names)
  for i = 1, #names do
    local c = names[i]
    out[i] = c .. ' ' .. marks[c][1] .. ' ' .. marks[c][2] .. '\n'
  end
  return out
end
local function expireBarrier(key, r)
  local x = r.x
  if x and x.bu and x.bu <= now then x.b, x.bu = nil, nil; bch[key] = r end
end
-- tidy arms the expiry of a barrier that nothing but time keeps.
local function tidy(key, r)
  local x = r.x
  if not x or not x.b then return end
  local bu
  if r.s == IDLE then bu = max(now, x.u or 0) + retention end
  if bu ~= x.bu then x.bu = bu; bch[key] = r end
end
-- demand merges what an add requires into the barrier; false when that is too much.
local function demand(r, barrier)
  local x = more(r)
  local b = x.b
  if b == barrier then return true end
  if b or #barrier >= 6 * MAXMARKS then -- no mark is shorter than 6
    local all = join(merge(merge({}, b or ''), barrier))
    if #all > MAXMARKS then return false end
    barrier = concat(all)
  end
  x.b = barrier
  return true
end
-- reach takes out of the barrier what a worker read, and adds what it wrote.
local function reach(key, r, readat, wrote)
  local x = more(r)
  if wrote == '' and readat == x.b then x.b = nil; return end
  local marks, own = merge(merge({}, x.b or ''), wrote), merge({}, wrote)
  for c, e, v in string.gmatch(readat, MARK) do
    local o = marks[c]
    -- What was written stays whatever was read: the next worker may read elsewhere.
    if o and not own[c] and markcmp(o[1], o[2], e, v) <= 0 then marks[c] = nil end
  end
  local all = join(marks)
  for i = #all, MAXMARKS + 1, -1 do all[i] = nil end
  if #all > 0 then
    x.b = concat(all)
  else
    x.b = nil
    if x.bu then x.bu = nil; bch[key] = r end
  end
end
