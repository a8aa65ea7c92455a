
local bov, boch = {}, {} -- back-off entries by id, {delay, updated} or false for none, and which changed
local gcReplies -- where in E the answers of collections go
local gone, ngone = {}, 0 -- plain leases that ended
do
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

local function entry(id)
  local e = bov[id]
  if e == nil then
    local raw = nbo > 0 and call('HGET', bo, id)
    e = raw and {sunpack('>dd', raw)} or false
    bov[id] = e
  end
  return e
end
local function sayEntry(e) nr = nr + 1; R[nr] = '\0'; say(e and e[1] or 0); say(e and e[2] or 0) end

local ai = 0
local function arg() ai = ai + 1; return args[ai] end

-- By code, operations that are not plain; raw is the stored record of the key.
local general = {
  [10] = function(key, raw) -- add
    local l, delay, last, limited, once, barrier = arg(), arg(), arg(), arg(), arg(), arg()
    add(key, raw, l, delay, last, limited, once, barrier, arg())
  end,
  [11] = function(key, raw) -- settle
    local t, o, l, delay, reason, readat = arg(), arg(), arg(), arg(), arg(), arg()
    settle(key, raw, t, o, l, delay, reason, readat, arg())
  end,
  [12] = function(key, raw) -- extend
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
      if moves then at = til; lch[key] = at; holders.keep(r.h, at) end
    end
    reply(s, nil, nil, at)
  end,
  [13] = function(key, raw) -- forget
    local x = open(key, raw).x
    if x then x.f = nil end
    reply(0)
  end,
  [14] = function(key, raw) -- requeues
    local x = open(key, raw).x
    reply(0, x and x.f)
  end,
  [15] = function(key, raw) -- save
    local t, data = arg(), arg()
    local r = open(key, raw)
    local s = held(r, t)
    if s == 7 then
      if data ~= '' then more(r).v = data elseif r.x then r.x.v = nil end
    end
    reply(s)
  end,
  [16] = function(key, raw) -- expect
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
  end,
  [17] = function(key, raw) -- observe
    local owner, c, d = arg(), arg(), arg()
    local r = open(key, raw)
    local x = r.x
    nr = nr + 1; R[nr] = '\0'
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
  end,
  [18] = function(key, raw) -- unexpect
    local r = open(key, raw)
    if r.x and r.x.e then setExpect(key, r.x, r, '') end
    reply(0)
  end,
  [19] = function(key, raw) -- inspect: the record and what is kept elsewhere
    local r = open(key, raw)
    nr = nr + 1; R[nr] = '\0'
    say(torec(r) or '')
    if r.s >= LEASED then say(deadlineOf(key)); say(holders.name(r.h)) else say(0); say('') end
  end,
  [20] = function() closed = true; reply(0) end,
  [21] = function() closed = false; reply(0) end,
  [22] = function() paused = true; reply(0) end,
  [23] = function() paused = false; reply(0) end,
  [24] = function(key, raw) -- retry now
    local r = open(key, raw)
    local x = r.x
    if not x or not x.u and not x.x then return reply(11) end
    local l = 4
    if x.u then l = x.ul; unschedule(key, r) end
    enqueue(key, r, l)
    tidy(key, r)
    reply(0)
  end,
  [25] = function(key, raw) -- revoke
    local r = open(key, raw)
    if r.s < LEASED then return reply(11) end
    requeue(key, r)
    reply(0)
  end,
  [26] = function(key, raw) -- delete
    local r = open(key, raw)
    if r.s >= LEASED then return reply(12) end
    expireBarrier(key, r)
    local x = r.x
    if x and x.e and not liveExpect(x) then setExpect(key, x, r, '') end
    if r.s == READY then -- its place in line is skipped
      giveUp(key, r.l)
      nready = nready - 1
    elseif not x or next(x) == nil then
      return reply(11)
    end
    if x then
      if x.x then ndead = ndead - 1 end
      unschedule(key, r)
      if x.bu then bch[key] = r end
      if x.e then ech[key] = r end
      r.x = nil
    end
    r.s = IDLE
    reply(0)
  end,
  [27] = function() sayEntry(entry(arg())) end,
  [28] = function() -- back-off, next
    local id, event, random = arg(), arg(), arg()
    local e, c, d = entry(id), conf(), nil
    if event == 0 then event = now end
    if not e or e[1] == 0 and e[2] == 0 or event - e[2] > c.expire then
      d = floor(c.initial + random * c.jitter * c.initial)
    else
      d = floor(min(2 * e[1] + random * c.jitter * e[1], c.max))
    end
    e = {d, now}
    bov[id], boch[id] = e, true
    sayEntry(e)
  end,
  [29] = function() -- back-off, reset
    local id = arg()
    if entry(id) then bov[id], boch[id] = false, true end
    reply(0)
  end,
  [30] = function() -- back-off, collect: answered at the end
    nr = nr + 1; R[nr] = '\0'
    ne = ne + 1; E[ne] = 0
    gcReplies = gcReplies or {}
    gcReplies[#gcReplies + 1] = ne
  end,
  [31] = function() -- reserve
    local n = min(arg(), MAXTOKENS)
    nr = nr + 1; R[nr] = '\0'
    if n <= 0 then return say(0) end
    local from = reserve(n)
    say(n); say(#from)
    for b = 1, #from do say(spack('>d', from[b])) end
  end,
  [32] = function() -- admit
    local n, g, at = arg(), 0, 0
    if qps == 0 then
      g = max(0, min(n, MAXTOKENS))
    elseif n < 0 then
      ttat = ttat - -n * (1e6 / qps)
    else
      local most = min(n, MAXTOKENS)
      while g < most and takeToken() do g = g + 1 end
      if g < n then at = max(now, ceil(tokenAt())) end
    end
    nr = nr + 1; R[nr] = '\0'
    say(g); say(at)
  end,
}

-- Read what to do as runs of one code: 0 to 7 are plain adds at that level, 8
-- and 9 plain settlements (done, forget), whose tokens are in toks behind the
-- kind of a leased record, so that one comparison tells that the lease is live
-- and the key is plain.
local i, tp = 1, 1 -- places in keys, toks
for g = 1, #runs, 2 do
  local code, n = runs[g], runs[g + 1]
  if code < 8 and closed then
    i = i + n
    nr = nr + 1; R[nr] = rep('\5', n)
  elseif code < 8 then
    local fresh = 'R' .. char(code) .. '\0\0' .. spack('>dd', now, now)
    local q = buf[code]
    if not q then q = {}; buf[code] = q end
    local nq, same = #q, 0 -- same: answers of the run's end that are all Queued
    for _ = 1, n do
      i = i + 1
      local key = keys[i]
      local c = cur[key]
      local v = c
      if v == nil then v = vals[i] end
      if not v then
        cur[key] = fresh
        nq = nq + 1
        q[nq] = key
        same = same + 1
      else
        if same > 0 then nr = nr + 1; R[nr] = rep('\1', same); nready = nready + same; added = added + same; same = 0 end
        local k, l
        if c == nil or v == fresh then k, l = byte(v, 1, 2) end
        if k == 82 and l >= code then -- a plain key that is ready: nothing changes
          nr = nr + 1; R[nr] = '\2'
        elseif k == 68 and byte(v, 32) >= code then -- dirty already
          nr = nr + 1; R[nr] = '\3'
        else
          add(key, vals[i], code, 0, false, false, nil, '', '')
          nq = #q
        end
      end
    end
    if same > 0 then nr = nr + 1; R[nr] = rep('\1', same); nready = nready + same; added = added + same end
  elseif code < 10 then
    local same = 0
    for _ = 1, n do
      i = i + 1
      local key, raw, t = keys[i], vals[i], sub(toks, tp, tp + 8)
      tp = tp + 9
      if raw and sub(raw, 1, 9) == t and cur[key] == nil then
        cur[key] = false
        ngone = ngone + 1
        gone[ngone] = key
        same = same + 1
      else
        if same > 0 then nr = nr + 1; R[nr] = rep('\7', same); same = 0 end
        settle(key, raw, sub(t, 2), code - 7, -1, 0, '', '', '')
      end
    end
    if same > 0 then nr = nr + 1; R[nr] = rep('\7', same) end
  else
    local f = general[code]
    for _ = 1, n do
      i = i + 1
      f(keys[i], vals[i])
    end
  end
end
nleased = nleased - ngone
end
