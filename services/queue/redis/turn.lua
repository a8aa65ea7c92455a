-- One turn of one queue partition; see core/workqueue for the rules. Every
-- helper reads through caches and nothing is written before flush, so a turn
-- either happens whole or not at all.
local meta, st, dly, dlv, leases, fail, bar, trc = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local sav, exp, why, dead, stale, bex, rq = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local eex = KEYS[24]
local call, unpack, tonumber, concat = redis.call, unpack, tonumber, table.concat
local READY, LEASED, DIRTY = 1, 2, 3
local CHUNK, SWEEP, MAXMARKS, MAXTRACES, EXPECT = 1000, 256, 64, 8, 300e6
local MAXDELAY = 10 * 365 * 24 * 3600 * 1e6

local ai = 0
local function arg() ai = ai + 1; return ARGV[ai] end
local function num() ai = ai + 1; return tonumber(ARGV[ai]) end
local function S(n) return string.format('%.0f', n) end

local seq, again, skew, run, ver = arg(), arg(), num(), arg(), arg()
local server, queue, channel = arg(), arg(), arg()
local leaseFor, retention, maxRetries, grows = num(), num(), num(), arg()

if again == '1' then -- a retry after a lost reply: answer what was answered
  local was = call('GET', rq)
  if was then
    local cut = string.find(was, ':', 1, true)
    if string.sub(was, 1, cut - 1) == seq then return string.sub(was, cut + 1) end
  end
end

local M = call('HMGET', meta, 'ver', 'run', 'hold', 'tok', 'closed', 'ready', 'dirty', 'leased', 'delayed', 'dead', 'used')
if not M[1] then return redis.error_reply('DPNOQUEUE no such queue') end
if M[1] ~= ver then return redis.error_reply('DPCONFIG the configuration changed') end
local T = call('TIME')
local now = T[1] * 1000000 + T[2] + skew
local hold, tok, closed = tonumber(M[3] or 0), tonumber(M[4] or 0), M[5] == '1'
local nready0 = tonumber(M[6] or 0)
local nready, ndirty, nleased = nready0, tonumber(M[7] or 0), tonumber(M[8] or 0)
local ndelayed, ndead, used = tonumber(M[9] or 0), tonumber(M[10] or 0), M[11] or ''
local added, retried, promoted, expired = 0, 0, 0, 0

-- Caches: v holds what is known (false: absent), d what was changed. A hash
-- that was never used, by its letter in meta's "used", is not asked.
local function cache(key, letter)
  return {key = key, v = {}, d = {}, letter = letter, on = letter == nil or string.find(used, letter, 1, true) ~= nil}
end
local function warm(c, fields)
  if not c.on or #fields == 0 then return end
  for s = 1, #fields, CHUNK do
    local e = math.min(s + CHUNK - 1, #fields)
    local vals = call('HMGET', c.key, unpack(fields, s, e))
    for j = s, e do
      if c.v[fields[j]] == nil then c.v[fields[j]] = vals[j - s + 1] end
    end
  end
end
local function get(c, f)
  local v = c.v[f]
  if v ~= nil then return v end
  if not c.on then return false end
  v = call('HGET', c.key, f)
  c.v[f] = v
  return v
end
local function put(c, f, v)
  c.v[f] = v
  c.d[f] = true
  c.any = true
end
local function chunked(cmd, key, list)
  for s = 1, #list, 2 * CHUNK do
    call(cmd, key, unpack(list, s, math.min(s + 2 * CHUNK - 1, #list)))
  end
end
local function flush(c)
  if not c.any then return end
  local set, del = {}, {}
  for f in pairs(c.d) do
    local v = c.v[f]
    if v then set[#set + 1] = f; set[#set + 1] = v else del[#del + 1] = f end
  end
  chunked('HSET', c.key, set)
  chunked('HDEL', c.key, del)
  c.d, c.any = {}, false
  if c.letter and not c.on then c.on = true; used = used .. c.letter end
end

-- Sorted sets by time, cached in the same way.
local function zget(c, f)
  local v = c.v[f]
  if v == nil then
    if not c.on then return false end
    local s = call('ZSCORE', c.key, f)
    v = s and tonumber(s) or false
    c.v[f] = v
  end
  return v
end
local function zflush(c)
  if not c.any then return end
  local set, del = {}, {}
  for f in pairs(c.d) do
    local v = c.v[f]
    if v then set[#set + 1] = S(v); set[#set + 1] = f else del[#del + 1] = f end
  end
  chunked('ZADD', c.key, set)
  chunked('ZREM', c.key, del)
  c.d, c.any = {}, false
  if c.letter and not c.on then c.on = true; used = used .. c.letter end
end

-- The state hash, decoded.
local cst = {v = {}, d = {}}
local rawst = cache(st)
local function rec(key)
  local r = cst.v[key]
  if r == nil then
    local raw = get(rawst, key)
    r = false
    if raw then
      local k = string.byte(raw, 1)
      if k == READY then
        local _, l, a, ad, rd = struct.unpack('>BBHdd', raw)
        r = {k = k, l = l, a = a, ad = ad, rd = rd}
      else
        local _, l, a, g, t, ad, rd, di = struct.unpack('>BBHBdddd', raw)
        r = {k = k, l = l, a = a, g = g, t = t, ad = ad, rd = rd, di = di, h = string.sub(raw, 38)}
      end
    end
    cst.v[key] = r
  end
  return r
end
local function setrec(key, r) cst.v[key] = r; cst.d[key] = true end
local function flushst()
  for key in pairs(cst.d) do
    local r = cst.v[key]
    if not r then put(rawst, key, false)
    elseif r.k == READY then put(rawst, key, struct.pack('>BBHdd', READY, r.l, r.a, r.ad, r.rd))
    else put(rawst, key, struct.pack('>BBHBdddd', r.k, r.l, r.a, r.g, r.t, r.ad, r.rd, r.di) .. r.h) end
  end
  flush(rawst)
end

local cdly, clease, cbex = cache(dly), cache(leases), cache(bex, 'B')
cdly.on, clease.on = ndelayed > 0, nleased > 0
local ceex = cache(eex, 'x')
local cdlv, cfail, cbar, ctrc = cache(dlv, 'l'), cache(fail, 'f'), cache(bar, 'b'), cache(trc, 't')
local csav, cexp, cwhy, cdead, cstale = cache(sav, 's'), cache(exp, 'e'), cache(why, 'w'), cache(dead), cache(stale, 'p')
cdead.on = ndead > 0

-- Barriers: "until\n" and a line "collection epoch rv\n" each.
local function rvcmp(a, b)
  if #a ~= #b then return #a < #b and -1 or 1 end
  if a == b then return 0 end
  return a < b and -1 or 1
end
local function markcmp(ae, ar, be, br)
  if ae ~= '0' and be ~= '0' and ae ~= be then return rvcmp(ae, be) end
  return rvcmp(ar, br)
end
local function marks(s)
  local m, n = {}, 0
  for c, e, r in string.gmatch(s, '(%S+) (%d+) (%d+)\n') do m[c] = {e, r}; n = n + 1 end
  return m, n
end
local function merge(m, n, s)
  for c, e, r in string.gmatch(s, '(%S+) (%d+) (%d+)\n') do
    local o = m[c]
    if not o then m[c] = {e, r}; n = n + 1
    elseif markcmp(e, r, o[1], o[2]) > 0 then m[c] = {e ~= '0' and e or o[1], r} end
  end
  return n
end
local function join(m)
  local names, out = {}, {}
  for c in pairs(m) do names[#names + 1] = c end
  table.sort(names)
  for i, c in ipairs(names) do out[i] = c .. ' ' .. m[c][1] .. ' ' .. m[c][2] .. '\n' end
  return concat(out), names
end
local function barof(key)
  local b = get(cbar, key)
  if not b then return nil, 0 end
  local cut = string.find(b, '\n', 1, true)
  return string.sub(b, cut + 1), tonumber(string.sub(b, 1, cut - 1))
end
local function expirebar(key)
  if not cbar.on and not cbar.any then return end
  local b, til = barof(key)
  if b and til ~= 0 and til <= now then
    put(cbar, key, false); put(cbex, key, false)
  end
end
local function tidy(key)
  if not cbar.on and not cbar.any then return end
  local b, til = barof(key)
  if not b then return end
  if b == '' then
    put(cbar, key, false); put(cbex, key, false)
  elseif rec(key) then
    if til ~= 0 then put(cbar, key, '0\n' .. b); put(cbex, key, false) end
  else
    til = math.max(now, zget(cdly, key) or 0) + retention
    put(cbar, key, S(til) .. '\n' .. b); put(cbex, key, til)
  end
end

-- Lines: what is pushed in this turn waits in buf until after the leases.
local buf = {}
for l = 0, 7 do buf[l] = {} end
local function line(key, l) local q = buf[l]; q[#q + 1] = key end
local function push(key, r, l)
  r.k, r.l, r.rd = READY, l, now
  r.t, r.g, r.di, r.h = nil, nil, nil, nil
  nready = nready + 1
  setrec(key, r)
  line(key, l)
end
local function enqueue(key, l)
  local r = rec(key)
  if r then
    if r.k == LEASED then
      r.k, r.g, r.di = DIRTY, l, now
      ndirty = ndirty + 1
      added = added + 1
      setrec(key, r)
      return 3
    elseif r.k == DIRTY then
      if l > r.g then r.g = l; setrec(key, r) end
      return 3
    end
    if l > r.l then -- the old place in line is skipped when it is reached
      local f = r.l .. key
      put(cstale, f, tostring((tonumber(get(cstale, f) or 0)) + 1))
      r.l = l
      setrec(key, r)
      line(key, l)
    end
    return 2
  end
  if get(cdead, key) then
    put(cdead, key, false)
    ndead = ndead - 1
    put(cfail, key, false)
  end
  expirebar(key)
  added = added + 1
  push(key, {a = 0, ad = now}, l)
  return 1
end
local function schedule(key, due, l, last)
  local old = zget(cdly, key)
  if not old then ndelayed = ndelayed + 1 end
  if not old or last or due < old then put(cdly, key, due) end
  local ol = l
  if old then ol = math.max(l, tonumber(get(cdlv, key) or 4)) end
  if ol ~= 4 then put(cdlv, key, tostring(ol)) elseif old or get(cdlv, key) then put(cdlv, key, false) end
end

-- The limiter, as a program in postfix order.
local prog = {}
for i = 1, num() do prog[i] = arg() end
local tats, ntats
local function charge(key)
  local f = tonumber(get(cfail, key) or 0)
  put(cfail, key, S(f + 1))
  local stack, top, b, i = {}, 0, 0, 1
  while prog[i] do
    local o = prog[i]
    if o == 'e' then
      local d, m = tonumber(prog[i + 1]), tonumber(prog[i + 2])
      if d > 0 then d = d * 2 ^ f end
      top = top + 1; stack[top] = math.min(d, m); i = i + 3
    elseif o == 'f' then
      top = top + 1
      stack[top] = tonumber(f + 1 <= tonumber(prog[i + 3]) and prog[i + 1] or prog[i + 2]); i = i + 4
    elseif o == 'b' then
      if not tats then
        tats, ntats = {}, 0
        for j = 1, 32 do tats[j] = 't' .. j end
        tats = call('HMGET', meta, unpack(tats))
        for j = 1, 32 do tats[j] = tonumber(tats[j] or 0) end
      end
      b = b + 1
      ntats = math.max(ntats, b)
      local interval = 1e6 / tonumber(prog[i + 1])
      local t = math.max(tats[b], now)
      tats[b] = t + interval
      top = top + 1; stack[top] = math.max(0, t - (tonumber(prog[i + 2]) - 1) * interval - now); i = i + 3
    elseif o == 'm' then
      local n, longest = tonumber(prog[i + 1]), 0
      for _ = 1, n do longest = math.max(longest, stack[top]); top = top - 1 end
      top = top + 1; stack[top] = longest; i = i + 2
    else -- w
      stack[top] = math.min(stack[top], tonumber(prog[i + 1])); i = i + 2
    end
  end
  if top == 0 then return 0 end
  return math.min(math.ceil(stack[1]), MAXDELAY)
end

-- held: the record and 7 when the token is the live lease's, else 9 or 10.
local function held(key, token)
  local r = rec(key)
  if not r then return nil, 10 end
  if r.k == READY then return r, r.a > 0 and 9 or 10 end
  if r.t ~= token then return r, 9 end
  return r, 7
end

-- Expectations: "owner\ntoken\nstored\n" and a line "+name\n" or "-name\n" each.
local function liveexp(key)
  local e = get(cexp, key)
  if not e then return false end
  local stored = string.match(e, '^[^\n]*\n%d+\n(%d+)\n')
  if tonumber(stored) + EXPECT <= now then return false end
  return e
end
local function names(s, sign, out)
  for n in string.gmatch(s, '([^\n]+)\n') do out[sign .. n] = true end
end

local out, extra = {}, {}
local nout = 0
local function reply(status, requeues, readyAt, deadline)
  nout = nout + 1
  requeues, readyAt, deadline = requeues or 0, readyAt or 0, deadline or 0
  if requeues == 0 and readyAt == 0 and deadline == 0 then out[nout] = status
  else out[nout] = {status, requeues, readyAt, deadline} end
end

local function add(key, l, delay, last, limited, barrier, trace)
  if closed then return reply(5) end
  expirebar(key)
  if barrier ~= '' then
    local b = barof(key)
    local m, n = marks(b or '')
    n = merge(m, n, barrier)
    if n > MAXMARKS then return reply(6) end
    local _, til = barof(key)
    put(cbar, key, S(til) .. '\n' .. (join(m)))
  end
  if trace ~= '' then
    local t = (get(ctrc, key) or '') .. trace .. '\n'
    local _, n = string.gsub(t, '\n', '')
    if n > MAXTRACES then t = string.sub(t, string.find(t, '\n', 1, true) + 1) end
    put(ctrc, key, t)
  end
  if limited then delay = charge(key) end
  if limited or delay > 0 then retried = retried + 1 end
  local status, readyAt = nil, 0
  if delay > 0 then
    schedule(key, now + delay, l, last)
    status, readyAt = 4, zget(cdly, key)
  else
    status = enqueue(key, l)
  end
  tidy(key)
  reply(status, tonumber(get(cfail, key) or 0), readyAt)
end

local function settle(key, token, outcome, level, delay, reason, readat, wrote)
  local r, s = held(key, token)
  if s ~= 7 then return reply(s) end
  local b, til = barof(key)
  if b or wrote ~= '' then
    local m, n = marks(b or '')
    merge(m, n, wrote)
    local own = marks(wrote)
    for c, e, v in string.gmatch(readat, '(%S+) (%d+) (%d+)\n') do
      local o = m[c]
      if o and not own[c] and markcmp(o[1], o[2], e, v) <= 0 then m[c] = nil end
    end
    local text, cs = join(m)
    if #cs > MAXMARKS then
      for i = MAXMARKS + 1, #cs do m[cs[i]] = nil end
      text = join(m)
    end
    put(cbar, key, S(til) .. '\n' .. text)
  end
  if reason ~= '' then put(cwhy, key, reason)
  elseif outcome <= 2 and get(cwhy, key) then put(cwhy, key, false) end
  nleased = nleased - 1
  local dirty, lvl = r.k == DIRTY, r.l
  if level >= 0 then lvl = level end
  if dirty then ndirty = ndirty - 1 end
  put(clease, key, false)

  local bury, again = outcome == 6, -1
  if outcome == 2 then
    if get(cfail, key) then put(cfail, key, false) end
  elseif outcome == 3 then
    bury = maxRetries > 0 and tonumber(get(cfail, key) or 0) >= maxRetries
    if not bury then again = charge(key); retried = retried + 1 end
  elseif outcome == 4 then
    if get(cfail, key) then put(cfail, key, false) end
    again = delay; retried = retried + 1
  elseif outcome == 5 then
    again = delay
  end
  local status, readyAt = 7, 0
  local requeues = tonumber(get(cfail, key) or 0)
  if again > 0 then
    schedule(key, now + again, lvl, false)
    readyAt = zget(cdly, key)
  end
  if dirty then
    status, readyAt = 8, now
    if again == 0 then lvl = math.max(lvl, r.g) else lvl = r.g end
    push(key, {a = 0, ad = r.di}, lvl)
  elseif again == 0 then
    readyAt = now
    local ad = r.ad
    if outcome ~= 5 then ad = now; added = added + 1 end
    push(key, {a = 0, ad = ad}, lvl)
  else
    setrec(key, false)
    if bury then
      put(cdead, key, S(now))
      ndead = ndead + 1
      if zget(cdly, key) then ndelayed = ndelayed - 1; put(cdly, key, false) end
      if get(cdlv, key) then put(cdlv, key, false) end
    end
  end
  tidy(key)
  reply(status, requeues, readyAt)
end

local function inspect(key)
  local r, due = rec(key), zget(cdly, key)
  local state, token, holder, deadline, attempt, lvl, ad, rd = 0, 0, '', 0, 0, 0, 0, 0
  if r then
    attempt, lvl, ad, rd = r.a, r.l, r.ad, r.rd
    state = r.k == READY and 1 or r.k + 1
    if r.k ~= READY then token, holder, deadline = r.t, r.h, zget(clease, key) or 0 end
  elseif get(cdead, key) then state = 5
  elseif due then state, lvl, rd = 2, tonumber(get(cdlv, key) or 4), due end
  local b, til = barof(key)
  if b and til ~= 0 and til <= now then b = nil end
  return {state, token, holder, deadline, tonumber(get(cfail, key) or 0), attempt, lvl, ad, rd, due or 0,
    b or '', #(get(csav, key) or ''), liveexp(key) or '', get(cwhy, key) or ''}
end

-- Read the operations, look their keys up in one go, apply them in order.
local takes, want = {}, 0
for i = 1, num() do
  takes[i] = {arg(), num(), num()}
  want = want + takes[i][2]
end
local ops, keys = {}, {}
local nops = num()
local argc = {a = 2, A = 7, d = 2, g = 2, S = 8, x = 5, f = 1, n = 1, v = 3, e = 5, o = 4, u = 1, i = 1, C = 0, O = 0}
for i = 1, nops do
  local k = arg()
  ops[i] = ai
  if argc[k] > 0 then keys[#keys + 1] = ARGV[ai + 1] end
  ai = ai + argc[k]
end
warm(rawst, keys)

for i = 1, nops do
  ai = ops[i]
  local k, key = ARGV[ai], ARGV[ai + 1]
  ai = ai + 1
  if k == 'a' then add(key, num(), 0, false, false, '', '')
  elseif k == 'd' then settle(key, num(), 1, -1, 0, '', '', '')
  elseif k == 'g' then settle(key, num(), 2, -1, 0, '', '', '')
  elseif k == 'A' then
    local l, delay, last, limited = num(), num(), arg() == '1', arg() == '1'
    add(key, l, delay, last, limited, arg(), arg())
  elseif k == 'S' then
    local t, o, l, delay = num(), num(), num(), num()
    settle(key, t, o, l, delay, arg(), arg(), arg())
  elseif k == 'x' then
    local t, dur, shorten, known = num(), num(), arg() == '1', num()
    local _, s = held(key, t)
    local deadline = 0
    if s == 7 then
      deadline = zget(clease, key) or 0
      local moved = shorten and known ~= 0 and deadline > known -- extended elsewhere since
      if not moved and (now + dur > deadline) ~= shorten then deadline = now + dur; put(clease, key, deadline) end
    end
    reply(s, 0, 0, deadline)
  elseif k == 'f' then
    if get(cfail, key) then put(cfail, key, false) end
    reply(0)
  elseif k == 'n' then reply(0, tonumber(get(cfail, key) or 0))
  elseif k == 'v' then
    local _, s = held(key, num())
    local data = arg()
    if s == 7 then
      if data ~= '' then put(csav, key, data) elseif get(csav, key) then put(csav, key, false) end
    end
    reply(s)
  elseif k == 'e' then
    local t = num()
    local _, s = held(key, t)
    if s == 7 then
      local owner, c, d = arg(), arg(), arg()
      local lines = {}
      for n in string.gmatch(c, '([^\n]+)\n') do lines[#lines + 1] = '+' .. n .. '\n' end
      for n in string.gmatch(d, '([^\n]+)\n') do lines[#lines + 1] = '-' .. n .. '\n' end
      if #lines > 0 then
        put(ceex, key, now + EXPECT) -- swept then, if nothing else ends them
        put(cexp, key, owner .. '\n' .. S(t) .. '\n' .. S(now) .. '\n' .. concat(lines))
      elseif get(cexp, key) then put(cexp, key, false) end
    end
    reply(s)
  elseif k == 'o' then
    local owner, c, d = arg(), arg(), arg()
    local e = get(cexp, key)
    if e then
      local own, head, body = string.match(e, '^([^\n]*)(\n%d+\n%d+\n)(.*)$')
      if owner == '' or owner == own then
        local gone, left = {}, {}
        names(c, '+', gone); names(d, '-', gone)
        for n in string.gmatch(body, '([^\n]+)\n') do
          if not gone[n] then left[#left + 1] = n .. '\n' end
        end
        if #left == 0 then put(cexp, key, false) else put(cexp, key, own .. head .. concat(left)) end
      end
      local live = liveexp(key)
      if not live then put(cexp, key, false)
      else extra[#extra + 1] = i; extra[#extra + 1] = live end
    end
    reply(0)
  elseif k == 'u' then
    if get(cexp, key) then put(cexp, key, false) end
    reply(0)
  elseif k == 'i' then
    extra[#extra + 1] = i; extra[#extra + 1] = inspect(key)
    reply(0)
  elseif k == 'C' then closed = true; reply(0)
  else closed = false; reply(0) end
end

-- From here on things are written. The first write decides about memory: a
-- turn that adds is refused whole when Redis is full, any other is let through.
local M2 = {}
if run ~= M[2] then
  M2[#M2 + 1] = 'run'; M2[#M2 + 1] = run
  if M[2] then hold = now + leaseFor; M2[#M2 + 1] = 'hold'; M2[#M2 + 1] = S(hold) end
end
if nops > 0 then
  if grows == '1' then call('HSET', meta, 'ver', ver) else call('HDEL', meta, '-') end
end
zflush(cdly)
zflush(clease)

local head = ndelayed > 0 and call('ZRANGE', dly, 0, 0, 'WITHSCORES') or {}
if head[1] and tonumber(head[2]) <= now then
  local due = call('ZRANGEBYSCORE', dly, '-inf', S(now), 'LIMIT', 0, SWEEP)
  chunked('ZREM', dly, due)
  warm(rawst, due)
  for _, key in ipairs(due) do
    cdly.v[key] = false
    enqueue(key, tonumber(get(cdlv, key) or 4))
    if get(cdlv, key) then put(cdlv, key, false) end
    tidy(key)
  end
  promoted = #due
  ndelayed = ndelayed - promoted
  head = call('ZRANGE', dly, 0, 0, 'WITHSCORES')
end
local nextdue = tonumber(head[2] or 0)

head = nleased > 0 and call('ZRANGE', leases, 0, 0, 'WITHSCORES') or {}
local firstlease = tonumber(head[2] or 0)
if head[1] and firstlease <= now then
  local over = call('ZRANGEBYSCORE', leases, '-inf', S(now), 'LIMIT', 0, SWEEP)
  chunked('ZREM', leases, over)
  warm(rawst, over)
  for _, key in ipairs(over) do
    clease.v[key] = false
    local r = rec(key)
    if r and r.k ~= READY then
      local l = r.l
      if r.k == DIRTY then l = math.max(l, r.g); ndirty = ndirty - 1 end
      push(key, r, l)
      expired = expired + 1
    end
  end
  nleased = nleased - #over
  head = call('ZRANGE', leases, 0, 0, 'WITHSCORES')
  firstlease = tonumber(head[2] or 0)
end

local granted, pos = {}, {}
for l = 0, 7 do pos[l] = 0 end
if want > 0 and nready > 0 and now >= hold then
  local keys, lvl = {}, {}
  local function offer(list, l, from)
    if cstale.on or cstale.any then
      local f = {}
      for i = from, #list do f[#f + 1] = l .. list[i] end
      warm(cstale, f)
    end
    local i = from
    while i <= #list and #keys < want do
      local key = list[i]
      local f = l .. key
      local s = cstale.v[f]
      if s then
        s = tonumber(s) - 1
        put(cstale, f, s > 0 and tostring(s) or false)
      else
        keys[#keys + 1] = key; lvl[#lvl + 1] = l
      end
      i = i + 1
    end
    return i - 1
  end
  for l = 7, 0, -1 do
    while (nready0 > 0 or cstale.on) and #keys < want do
      local n = math.min(want - #keys, CHUNK)
      local got = call('LPOP', KEYS[16 + l], n)
      if not got then break end
      offer(got, l, 1)
      if #got < n then break end
    end
    if #keys < want and #buf[l] > 0 then pos[l] = offer(buf[l], l, 1) end
    if #keys >= want then break end
  end
  warm(rawst, keys)
  for _, c in ipairs({cfail, cbar, ctrc, csav, cexp}) do warm(c, keys) end
  local ti, left = 1, takes[1][2]
  for i, key in ipairs(keys) do
    while left <= 0 do ti = ti + 1; left = takes[ti][2] end
    left = left - 1
    local r, take = rec(key), takes[ti]
    tok = math.max(tok + 1, now)
    local dur = take[3]
    if dur == 0 then dur = leaseFor end
    r.k, r.g, r.t, r.di, r.h = LEASED, 255, tok, 0, take[1]
    r.a = math.min(r.a + 1, 65535)
    setrec(key, r)
    put(clease, key, now + dur)
    nready, nleased = nready - 1, nleased + 1
    if firstlease == 0 or now + dur < firstlease then firstlease = now + dur end
    local n = #granted
    granted[n + 1], granted[n + 2], granted[n + 3], granted[n + 4] = ti - 1, key, tok, dur
    granted[n + 5], granted[n + 6], granted[n + 7] = r.ad, r.rd, r.l * 65536 + r.a
    local f, b, t, sv, e = get(cfail, key), get(cbar, key), get(ctrc, key), get(csav, key), get(cexp, key)
    if f or b or t or sv or e then
      granted[n + 8] = {tonumber(f or 0), b and barof(key) or '', t or '', sv or '', liveexp(key) or ''}
      if t then put(ctrc, key, false) end
    else
      granted[n + 8] = 0
    end
  end
end

for l = 0, 7 do
  local q = buf[l]
  for s = pos[l] + 1, #q, CHUNK do call('RPUSH', KEYS[16 + l], unpack(q, s, math.min(s + CHUNK - 1, #q))) end
end
flushst()
zflush(clease)
for _, c in ipairs({cdlv, cfail, cbar, ctrc, csav, cexp, cwhy, cdead, cstale}) do flush(c) end
zflush(cbex)
zflush(ceex)
local over = cbex.on and call('ZRANGEBYSCORE', bex, '-inf', S(now), 'LIMIT', 0, SWEEP) or {}
if #over > 0 then
  chunked('ZREM', bex, over)
  chunked('HDEL', bar, over)
end
over = ceex.on and call('ZRANGEBYSCORE', eex, '-inf', S(now), 'LIMIT', 0, SWEEP) or {}
if #over > 0 then
  chunked('ZREM', eex, over)
  chunked('HDEL', exp, over)
end

if tats then
  for j = 1, ntats do M2[#M2 + 1] = 't' .. j; M2[#M2 + 1] = string.format('%.17g', tats[j]) end
end
local function changed(name, was, is)
  if was ~= is then M2[#M2 + 1] = name; M2[#M2 + 1] = is end
end
changed('tok', M[4] or '0', S(tok))
changed('closed', M[5] == '1' and '1' or '0', closed and '1' or '0')
changed('ready', M[6] or '0', S(nready))
changed('dirty', M[7] or '0', S(ndirty))
changed('leased', M[8] or '0', S(nleased))
changed('delayed', M[9] or '0', S(ndelayed))
changed('dead', M[10] or '0', S(ndead))
changed('used', M[11] or '', used)
if #M2 > 0 then call('HSET', meta, unpack(M2)) end

if firstlease ~= 0 and (nextdue == 0 or firstlease < nextdue) then nextdue = firstlease end
if hold > now and (nextdue == 0 or hold < nextdue) then nextdue = hold end
if nready > 0 and nready0 == 0 then call('PUBLISH', channel, server .. ' ' .. queue) end

local blob = cmsgpack.pack({now, nextdue, nready, ndelayed, nleased, ndirty, ndead,
  added, retried, promoted, expired, out, extra, granted})
if nops > 0 or #granted > 0 then call('SET', rq, seq .. ':' .. blob, 'PX', 120000) end
return blob
