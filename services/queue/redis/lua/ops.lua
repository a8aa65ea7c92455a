
-- The rules, with a key's record r as a table.
local function unschedule(key, r)
  local x = r.x
  if x and x.u then
    x.u, x.ul, x.ub, x.uo = nil, nil, nil, nil
    m.ndelayed = m.ndelayed - 1
    uch[key] = r
  end
end
local function schedule(key, r, due, l, last, limited, once)
  local x = more(r)
  if not x.u then x.ul = l; m.ndelayed = m.ndelayed + 1 end
  if not x.u or last or due < x.u then
    x.u, x.ub, x.uo = due, limited and 1 or nil, once
    uch[key] = r
  end
  if l > x.ul then x.ul = l end
end
local function enqueue(key, r, l)
  local s, x = r.s, r.x
  if s == LEASED then
    r.s, r.g, r.di = DIRTY, l, now
    m.ndirty = m.ndirty + 1
    m.added = m.added + 1
    return 3
  elseif s == DIRTY then
    if l > r.g then r.g = l end
    return 3
  elseif s == READY then
    if l > r.l then -- a key that is raised goes to the tail of its new level
      giveUp(key, r.l)
      r.l = l
      line(key, l)
    end
    return 2
  elseif x and x.x then
    m.ndead = m.ndead - 1
    x.x, x.f, x.h = nil, nil, nil
  end
  expireBarrier(key, r)
  r.a, r.ad = 0, now
  m.added = m.added + 1
  push(key, r, l)
  return 1
end
local function absorbDelay(key, r)
  if absorb then unschedule(key, r) end
end

-- What few transactions need of the configuration, and the limiter as a program in
-- postfix order.
local rare
local function conf()
  if not rare then
    local _, _, initial, most, jitter, expire, prog = munpack(ARGV[3])
    rare = {initial = initial, most = most, jitter = jitter, expire = expire, prog = prog}
  end
  return rare
end
local tats, froms
local function buckets()
  if not tats then
    tats = {}
    local pos, j = tatsAt, 0
    while pos <= #control do j = j + 1; tats[j], pos = sunpack('>d', control, pos) end
    g.tats = tats
  end
  return tats
end
-- tokens are where the next token of each bucket comes from: the buckets, or
-- what was reserved of them for this transaction.
local function tokens()
  if not away then return buckets() end
  if not froms then
    froms = {}
    for j = 2, #away do froms[j - 1] = away[j] end
  end
  m.spent = m.spent + 1
  return froms
end
local function charge(r)
  local x, prog, tat = more(r), conf().prog, tokens()
  local f = x.f or 0
  x.f = f + 1
  local stack, top, b, i = {}, 0, 0, 1
  while prog[i] do
    local o = prog[i]
    if o == 'e' then
      local d, longest = prog[i + 1], prog[i + 2]
      if d > 0 then d = d * 2 ^ f end
      top = top + 1; stack[top] = min(d, longest); i = i + 3
    elseif o == 'f' then
      top = top + 1; stack[top] = f + 1 <= prog[i + 3] and prog[i + 1] or prog[i + 2]; i = i + 4
    elseif o == 'b' then
      b = b + 1
      local interval, t = 1e6 / prog[i + 1], tat[b] or 0
      if not away then t = max(t, now) end
      tat[b] = t + interval
      top = top + 1; stack[top] = max(0, t - (prog[i + 2] - 1) * interval - now); i = i + 3
    elseif o == 'm' then
      local longest = 0
      for _ = 1, prog[i + 1] do longest = max(longest, stack[top]); top = top - 1 end
      top = top + 1; stack[top] = longest; i = i + 2
    else -- w
      stack[top] = min(stack[top], prog[i + 1]); i = i + 2
    end
  end
  return min(ceil(stack[1]), MAXDELAY)
end
-- reserve takes n tokens of every bucket for another partition, or gives -n back.
local function reserve(n)
  local prog, tat, b, i = conf().prog, buckets(), 0, 1
  local from = {}
  while prog[i] do
    local o = prog[i]
    if o == 'b' then
      b = b + 1
      from[b] = max(tat[b] or 0, now)
      if n > 0 then tat[b] = from[b] + n * (1e6 / prog[i + 1])
      else tat[b] = (tat[b] or 0) - -n * (1e6 / prog[i + 1]) end
    end
    i = i + (o == 'f' and 4 or (o == 'm' or o == 'w') and 2 or 3)
  end
  return from
end

-- held: 7 when the token is the live lease's, else 9 (lost) or 10 (nobody holds it).
local function held(r, token)
  if r.s >= LEASED then return r.t == token and 7 or 9 end
  if r.s == READY and r.a > 0 then return 9 end
  return 10
end
local function deadlineOf(key)
  local at = lch[key]
  if at == nil then at = tonumber(call('ZSCORE', lease, key) or 0) end
  return at or 0
end
local function unlease(key, r)
  if r.s == DIRTY then m.ndirty = m.ndirty - 1 end
  m.nleased = m.nleased - 1
  lch[key] = false
  r.s, r.t, r.h, r.g = IDLE, nil, nil, nil
end
local function requeue(key, r) -- a held key waits again
  local l, x = r.l, r.x
  if r.s == DIRTY then l = max(l, r.g) end
  unlease(key, r)
  if x and x.f and maxRetries > 0 then x.f = min(x.f, maxRetries) end -- a refused retry runs all the same
  push(key, r, l)
end

local function die(x)
  x.x = 1
  m.ndead = m.ndead + 1
  m.died = m.died + 1
end
local function retriedOut(x)
  if not x.w then x.w = format('retried %d times (max_retries)', maxRetries) end
end
local function exhausted(x) return maxRetries > 0 and (x and x.f or 0) >= maxRetries end

-- The operations.
say = function(v) local n = m.ne + 1; m.ne = n; E[n] = v end
reply = function(status, requeues, readyAt, deadline)
  local n = m.nr + 1
  m.nr = n
  if requeues or readyAt or deadline then
    R[n] = char(status + 128)
    say(requeues or 0); say(readyAt or 0); say(deadline or 0)
  else
    R[n] = char(status)
  end
end

-- fresh adds a key that nothing is known of, without making a table of it.
local now7 = spack('>I7', now)
local function fresh(key, l, barrier, trace)
  local t = trace ~= '' and mpack({trace}) or ''
  cur[key] = 'f' .. char(l) .. now7 .. spack('>I3', #t) .. t .. (barrier ~= '' and mpack({b = barrier}) or '')
  line(key, l)
  m.nready, m.added = m.nready + 1, m.added + 1
  reply(1)
end
local function add(key, raw, l, delay, last, limited, once, barrier, trace)
  if m.closed then return reply(5) end
  if not raw and cur[key] == nil and not limited and delay <= 0 and #barrier < 6 * MAXMARKS and barrier .. trace ~= '' then
    return fresh(key, l, barrier, trace)
  end
  local r = open(key, raw)
  expireBarrier(key, r)
  if barrier ~= '' and not demand(r, barrier) then return reply(6) end
  if trace ~= '' then
    local x = more(r)
    local t = x.t
    if t then
      t[#t + 1] = trace
      if #t > MAXTRACES then table.remove(t, 1) end
    else
      x.t = {trace}
    end
  end
  if limited or delay > 0 then m.retried = m.retried + 1 end
  local x = r.x
  local status, readyAt
  if limited and x and x.u and x.ub and (reserveOnce or once and once == x.uo) then
    x.ul = max(x.ul, l)
    status, readyAt = 4, x.u
  elseif limited and exhausted(x) then
    if r.s == READY or r.s == DIRTY then
      status = enqueue(key, r, l)
    elseif x.u then
      x.ul = max(x.ul, l)
      status, readyAt = 4, x.u
    else
      status = 13
      if r.s == LEASED then
        x.f = maxRetries + 1
      elseif not x.x then
        die(x)
        retriedOut(x)
      end
    end
  else
    if limited then delay = charge(r) end
    if delay <= 0 then
      status = enqueue(key, r, l)
      absorbDelay(key, r)
    elseif absorb and (r.s == READY or r.s == DIRTY) then -- it waits or runs again anyway
      status = enqueue(key, r, l)
    else
      schedule(key, r, now + delay, l, last, limited, limited and once or nil)
      status, readyAt = 4, r.x.u
    end
  end
  tidy(key, r)
  reply(status, r.x and r.x.f, readyAt)
end
g.add = add

local function settle(key, raw, token, outcome, level, delay, reason, readat, wrote)
  local r = open(key, raw)
  local s = held(r, token)
  if s ~= 7 then return reply(s) end
  local x = more(r)
  if wrote ~= '' or x.b and readat ~= '' then reach(key, r, readat, wrote) end
  if reason ~= '' then x.w = reason elseif outcome <= 2 then x.w = nil end
  x.h = nil
  local dirty, lvl, again, ad = r.s == DIRTY, r.l, r.g, r.ad
  if level >= 0 then lvl = level end
  unlease(key, r)
  r.a = 0

  local dead, wait = outcome == 6, -1 -- -1: no second run
  if outcome == 1 then
    dead = maxRetries > 0 and (x.f or 0) > maxRetries and not x.u -- a retry was refused
  elseif outcome == 2 then
    x.f = nil
  elseif outcome == 3 then
    dead = exhausted(x)
    if not dead then wait = charge(r); m.retried = m.retried + 1 end
  elseif outcome == 4 then
    x.f = nil
    wait = delay; m.retried = m.retried + 1
  elseif outcome == 5 then
    wait = delay
  end
  local status, readyAt, requeues = 7, nil, x.f
  if wait > 0 and not (dirty and absorb) then
    schedule(key, r, now + wait, lvl, false, outcome == 3, nil)
    readyAt = x.u
  end
  if dirty then -- exactly one more run, at the tail
    status, readyAt = 8, now
    if wait == 0 then lvl = max(lvl, again) else lvl = again end
    r.ad = r.di
    push(key, r, lvl)
    absorbDelay(key, r)
  elseif wait == 0 then
    readyAt = now
    if outcome ~= 5 then r.ad = now; m.added = m.added + 1 else r.ad = ad end
    push(key, r, lvl)
    absorbDelay(key, r)
  elseif dead then
    die(x)
    unschedule(key, r)
    if outcome ~= 6 then retriedOut(x) end
  end
  tidy(key, r)
  reply(status, requeues, readyAt)
end
-- done settles where nothing but the barrier and what is forgotten may be
-- known of the key, and then it needs no table.
local function done(key, raw, token, outcome, readat)
  if raw and cur[key] == nil and byte(raw) == 108 and sub(raw, 2, 9) == token and sub(raw, 30, 32) == '\0\0\0' then
    local x = munpack(sub(raw, 33))
    x.w, x.h = nil, nil
    if outcome == 2 then x.f = nil end
    if x.b == readat then x.b = nil end
    if next(x) == nil then
      cur[key] = false
      ngone = ngone + 1
      gone[ngone] = key
      return reply(7)
    end
  end
  settle(key, raw, token, outcome, -1, 0, '', readat, '')
end
g.done = done

-- What time does to a key.
function g.fallDue(key, raw)
  local r = open(key, raw)
  local l = r.x and r.x.ul or 4
  unschedule(key, r)
  uch[key] = nil -- taken out already
  enqueue(key, r, l)
  tidy(key, r)
end
function g.expireLease(key, raw)
  local r = open(key, raw)
  if r.s < LEASED then return 0 end
  if maxDeliveries > 0 then
    local x = more(r)
    local h = x.h or {}
    h[#h + 1] = holderOf(r.h)[1]
    if #h > MAXHOLDERS then table.remove(h, 1) end
    x.h = h
    if r.s == LEASED and r.a >= maxDeliveries then -- but not when it was added meanwhile
      x.w = format('handed out %d times and never settled (max_deliveries %d)', r.a, maxDeliveries)
      unlease(key, r)
      lch[key] = nil -- taken out already
      r.a = 0
      die(x)
      tidy(key, r)
      return 1
    end
  end
  requeue(key, r)
  lch[key] = nil -- taken out already
  return 1
end
-- lease gives the record before and makes the key leased.
function g.lease(key, raw, token, id)
  local r = open(key, raw)
  local was = torec(r)
  r.s, r.t, r.h = LEASED, token, id
  r.a = min(r.a + 1, 65535)
  if r.x then r.x.t = nil end
  return was
end
-- kept ends what was kept of a key past its time, a barrier ('b') or expectations.
function g.kept(member, raw)
  local x = open(sub(member, 2), raw).x
  if not x then return end
  if byte(member) == 98 then x.b, x.bu = nil, nil else x.e, x.eo, x.et, x.es = nil, nil, nil, nil end
end
