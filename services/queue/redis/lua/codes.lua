
local function liveExpect(x)
  return x and x.e and x.es + EXPECT > now
end
local function setExpect(key, x, r, e)
  if e == '' then e = nil end
  x.e = e
  if not e then x.eo, x.et, x.es = nil, nil, nil end
  ech[key] = r
end
local function names(s, sign, out)
  for n in string.gmatch(s, '([^\n]+)\n') do out[sign .. n] = true end
  return out
end

-- Back-off entries by id, {delay, updated} or false for none, and which changed.
local bo, boz = KEYS[8], KEYS[9]
local bov, boch = {}, {}
local function entry(id)
  local e = bov[id]
  if e == nil then
    local raw = m.nbo > 0 and call('HGET', bo, id)
    e = raw and {sunpack('>dd', raw)} or false
    bov[id] = e
  end
  return e
end
local function ok() local n = m.nr + 1; m.nr = n; R[n] = '\0' end
local function sayEntry(e) ok(); say(e and e[1] or 0); say(e and e[2] or 0) end
-- nextEntry is when the next entry may be dropped.
function g.nextEntry()
  local head = call('ZRANGE', boz, 0, 0, 'WITHSCORES')
  return tonumber(head[2] or 0) + conf().expire + 1
end

-- sweepBackoff writes entries, and drops those that were not moved for too long.
function g.sweepBackoff()
  for id in next, boch do
    local e = bov[id]
    if e then
      m.nbo = m.nbo + call('ZADD', boz, S(e[2]), id)
      call('HSET', bo, id, spack('>dd', e[1], e[2]))
    else
      m.nbo = m.nbo - call('ZREM', boz, id)
      call('HDEL', bo, id)
    end
  end
  local over = call('ZRANGEBYSCORE', boz, '-inf', S(now - conf().expire - 1), 'LIMIT', 0, SWEEP)
  if #over > 0 then
    m.nbo = m.nbo - chunked('ZREM', boz, over)
    chunked('HDEL', bo, over)
  end
end

local ai = 0
local function arg() ai = ai + 1; return args[ai] end

-- By code, operations that are not plain; raw is the stored record of the key.
g[10] = function(key, raw) -- add
  local l, delay, last, limited, once, barrier = arg(), arg(), arg(), arg(), arg(), arg()
  add(key, raw, l, delay, last, limited, once, barrier, arg())
end
g[11] = function(key, raw) -- settle
  local t, o, l, delay, reason, readat = arg(), arg(), arg(), arg(), arg(), arg()
  local wrote = arg()
  if o <= 2 and reason == '' and wrote == '' then return done(key, raw, t, o, readat) end
  settle(key, raw, t, o, l, delay, reason, readat, wrote)
end
g[12] = function(key, raw) -- extend
  local t, dur, shorten, known = arg(), arg(), arg(), arg()
  local r = open(key, raw)
  local s, at = held(r, t), nil
  if s == 7 then
    at = deadlineOf(key)
    local til, moves = now + dur, nil
    if shorten then
      moves = til <= at and not (known ~= 0 and at > known) -- not if extended elsewhere since
    else
      if maxProc > 0 then til = min(til, sunpack('>I8', r.t) + maxProc) end
      moves = til > at
    end
    if moves then at = til; lch[key] = at; holderUntil(r.h, at) end
  end
  reply(s, nil, nil, at)
end
g[13] = function(key, raw) -- forget
  local x = open(key, raw).x
  if x then x.f = nil end
  ok()
end
g[14] = function(key, raw) -- requeues
  local x = open(key, raw).x
  reply(0, x and x.f)
end
g[15] = function(key, raw) -- save
  local t, data = arg(), arg()
  local r = open(key, raw)
  local s = held(r, t)
  if s == 7 then
    if data ~= '' then more(r).v = data elseif r.x then r.x.v = nil end
  end
  reply(s)
end
g[16] = function(key, raw) -- expect
  local t, owner, c, d = arg(), arg(), arg(), arg()
  local r = open(key, raw)
  local s = held(r, t)
  if s == 7 then
    local x, out = more(r), {}
    for n in string.gmatch(c, '([^\n]+)\n') do out[#out + 1] = '+' .. n .. '\n' end
    for n in string.gmatch(d, '([^\n]+)\n') do out[#out + 1] = '-' .. n .. '\n' end
    x.eo, x.et, x.es = owner, t, now
    setExpect(key, x, r, concat(out))
  end
  reply(s)
end
g[17] = function(key, raw) -- observe
  local owner, c, d = arg(), arg(), arg()
  local r = open(key, raw)
  local x = r.x
  ok()
  if x and x.e then
    if owner == '' or owner == x.eo then
      local gone, left = names(d, '-', names(c, '+', {})), {}
      for n in string.gmatch(x.e, '([^\n]+)\n') do
        if not gone[n] then left[#left + 1] = n .. '\n' end
      end
      setExpect(key, x, r, concat(left))
    end
    if x.e and not liveExpect(x) then setExpect(key, x, r, '') end
  end
  if x and x.e then say(1); say(x.eo); say(x.et); say(x.es); say(x.e) else say(0) end
end
g[18] = function(key, raw) -- unexpect
  local r = open(key, raw)
  if r.x and r.x.e then setExpect(key, r.x, r, '') end
  ok()
end
g[19] = function(key, raw) -- inspect: the record and what is kept elsewhere
  local r = open(key, raw)
  ok()
  say(torec(r) or '')
  if r.s >= LEASED then say(deadlineOf(key)); say(holderOf(r.h)[1]) else say(0); say('') end
end
g[20] = function() m.closed = true; ok() end
g[21] = function() m.closed = false; ok() end
g[22] = function() m.paused = true; ok() end
g[23] = function() m.paused = false; ok() end
g[24] = function(key, raw) -- retry now
  local r = open(key, raw)
  local x = r.x
  if not x or not x.u and not x.x then return reply(11) end
  local l = 4
  if x.u then l = x.ul; unschedule(key, r) end
  enqueue(key, r, l)
  tidy(key, r)
  ok()
end
g[25] = function(key, raw) -- revoke
  local r = open(key, raw)
  if r.s < LEASED then return reply(11) end
  requeue(key, r)
  ok()
end
g[26] = function(key, raw) -- delete
  local r = open(key, raw)
  if r.s >= LEASED then return reply(12) end
  expireBarrier(key, r)
  local x = r.x
  if x and x.e and not liveExpect(x) then setExpect(key, x, r, '') end
  if r.s == READY then -- its place in line is skipped
    giveUp(key, r.l)
    m.nready = m.nready - 1
  elseif not x or next(x) == nil then
    return reply(11)
  end
  if x then
    if x.x then m.ndead = m.ndead - 1 end
    unschedule(key, r)
    if x.bu then bch[key] = r end
    if x.e then ech[key] = r end
    r.x = nil
  end
  r.s = IDLE
  ok()
end
g[27] = function() sayEntry(entry(arg())) end
g[28] = function() -- back-off, next
  local id, event, random = arg(), arg(), arg()
  local e, c, d = entry(id), conf(), nil
  if event == 0 then event = now end
  if not e or e[1] == 0 and e[2] == 0 or event - e[2] > c.expire then
    d = floor(c.initial + random * c.jitter * c.initial)
  else
    d = floor(min(2 * e[1] + random * c.jitter * e[1], c.most))
  end
  e = {d, now}
  bov[id], boch[id] = e, true
  g.backoff = true
  sayEntry(e)
end
g[29] = function() -- back-off, reset
  local id = arg()
  if entry(id) then bov[id], boch[id] = false, true; g.backoff = true end
  ok()
end
g[31] = function() -- reserve
  local n = min(arg(), MAXTOKENS)
  ok()
  local from = n ~= 0 and reserve(n)
  if n <= 0 then return say(0) end
  say(n); say(#from)
  for b = 1, #from do say(spack('>d', from[b])) end
end
g[32] = function() -- admit
  local n, got, at = arg(), 0, 0
  if qps == 0 then
    got = max(0, min(n, MAXTOKENS))
  elseif n < 0 then
    m.ttat = m.ttat - -n * (1e6 / qps)
  else
    local most = min(n, MAXTOKENS)
    while got < most and takeToken() do got = got + 1 end
    if got < n then at = max(now, ceil(tokenAt())) end
  end
  ok()
  say(got); say(at)
end
g[33] = function() -- audit: answered at the end
  m.audit = arg()
  ok()
  say(0); say(0)
  m.auditAt = m.ne - 1
end
g[34] = function(key, raw) -- put back
  local o, l, delay, f, barrier = arg(), arg(), arg(), arg(), arg()
  local data, reason, owner, c, d = arg(), arg(), arg(), arg(), arg()
  local r = open(key, raw)
  if r.s >= LEASED then return reply(12) end
  expireBarrier(key, r)
  if barrier ~= '' and not demand(r, barrier) then return reply(6) end
  local x = more(r)
  if data ~= '' and not x.v then x.v = data end
  if reason ~= '' and not x.w then x.w = reason end
  if owner ~= '' and c .. d ~= '' and not liveExpect(x) then
    local out = {}
    for n in string.gmatch(c, '([^\n]+)\n') do out[#out + 1] = '+' .. n .. '\n' end
    for n in string.gmatch(d, '([^\n]+)\n') do out[#out + 1] = '-' .. n .. '\n' end
    x.eo, x.et, x.es = owner, '\0\0\0\0\0\0\0\0', now
    setExpect(key, x, r, concat(out))
  end
  if maxRetries > 0 then f = min(f, maxRetries) end -- more says that a retry was refused
  if f > (x.f or 0) then x.f = f end
  if x.x then -- it stays dead
  elseif o == 6 then
    if r.s == IDLE and not x.u then die(x) end
  else
    if o == 5 then enqueue(key, r, l) end
    if delay > 0 and not (absorb and r.s == READY) then schedule(key, r, now + delay, l, false, false, nil) end
  end
  tidy(key, r)
  ok()
end

g.torec = torec
return g
end
-- general is called where something is not plain.
local function general()
  if not G then G = makeGeneral() end
  return G
end
