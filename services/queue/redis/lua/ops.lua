
-- The operations, the general way.
local function unschedule(key, r)
  local x = r.x
  if x and x.u then
    x.u, x.ul, x.ub, x.uo = nil, nil, nil, nil
    ndelayed = ndelayed - 1
    uch[key] = r
  end
end
local function schedule(key, r, due, l, last, limited, once)
  local x = more(r)
  if not x.u then x.ul = l; ndelayed = ndelayed + 1 end
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
    ndirty = ndirty + 1
    added = added + 1
    return 3
  elseif s == DIRTY then
    if l > r.g then r.g = l end
    return 3
  elseif s == READY then
    if l > r.l then -- P-01: at the tail of its new level
      giveUp(key, r.l)
      r.l = l
      line(key, l)
    end
    return 2
  elseif x and x.x then
    ndead = ndead - 1
    x.x, x.f = nil, nil
  end
  expireBarrier(key, r)
  r.a, r.ad = 0, now
  added = added + 1
  push(key, r, l)
  return 1
end
local function absorbDelay(key, r)
  if absorb then unschedule(key, r) end
end

-- What turns rarely need of the configuration, and the limiter as a program
-- in postfix order.
local rare
local function conf()
  if not rare then
    rare = {munpack(ARGV[3])}
    rare = {channel = rare[1], notice = rare[2], initial = rare[3], max = rare[4], jitter = rare[5], expire = rare[6], prog = rare[7]}
  end
  return rare
end
local tats, tatsChanged, froms
local function buckets()
  if not tats then
    tats = {}
    local pos, j = tatsAt, 0
    while pos <= #control do j = j + 1; tats[j], pos = sunpack('>d', control, pos) end
  end
  return tats
end
-- tokens are where the next token of each bucket comes from: the buckets, or
-- what was reserved of them for this turn.
local function tokens()
  if not away then
    tatsChanged = true
    return buckets()
  end
  if not froms then
    froms = {}
    for j = 2, #away do froms[j - 1] = away[j] end
  end
  spent = spent + 1
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
      local d, m = prog[i + 1], prog[i + 2]
      if d > 0 then d = d * 2 ^ f end
      top = top + 1; stack[top] = min(d, m); i = i + 3
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
-- reserve takes n tokens of every bucket for another partition.
local function reserve(n)
  local prog, tat, b, i = conf().prog, buckets(), 0, 1
  local from = {}
  while prog[i] do
    local o = prog[i]
    if o == 'b' then
      b = b + 1
      from[b] = max(tat[b] or 0, now)
      tat[b] = from[b] + n * (1e6 / prog[i + 1])
    end
    i = i + (o == 'f' and 4 or (o == 'm' or o == 'w') and 2 or 3)
  end
  tatsChanged = true
  return from
end
-- The dispatch limiter: when its next token is there, and taking it.
local function tokenAt() return max(ttat, now) - (burst - 1) * (1e6 / qps) end
local function takeToken()
  if tokenAt() > now then return false end
  ttat = max(ttat, now) + 1e6 / qps
  return true
end

-- held: 7 when the token is the live lease's, else 9 (lost) or 10 (nobody holds it).
local function held(r, token)
  if r.s == LEASED or r.s == DIRTY then return r.t == token and 7 or 9 end
  if r.s == READY and r.a > 0 then return 9 end
  return 10
end
local function deadlineOf(key)
  local at = lch[key]
  if at == nil then at = tonumber(call('ZSCORE', lease, key) or 0) end
  return at or 0
end
local function unlease(key, r)
  if r.s == DIRTY then ndirty = ndirty - 1 end
  nleased = nleased - 1
  lch[key] = false
  r.s, r.t, r.h, r.g = IDLE, nil, nil, nil
end
local function requeue(key, r) -- a held key waits again
  local l = r.l
  if r.s == DIRTY then l = max(l, r.g) end
  unlease(key, r)
  push(key, r, l)
end

local function add(key, raw, l, delay, last, limited, once, barrier, trace)
  if closed then return reply(5) end
  local r = open(key, raw)
  expireBarrier(key, r)
  if barrier ~= '' then
    local lines = join(merge(merge({}, r.x and r.x.b or ''), barrier))
    if #lines > MAXMARKS then return reply(6) end
    more(r).b = concat(lines)
  end
  if trace ~= '' then
    local x = more(r)
    local t = (x.t or '') .. trace .. '\n'
    local _, n = string.gsub(t, '\n', '')
    if n > MAXTRACES then t = sub(t, string.find(t, '\n', 1, true) + 1) end
    x.t = t
  end
  if limited or delay > 0 then retried = retried + 1 end
  local x = r.x
  local status, readyAt
  if limited and x and x.u and x.ub and (reserveOnce or once and once == x.uo) then
    x.ul = max(x.ul, l)
    status, readyAt = 4, x.u
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

local function settle(key, raw, token, outcome, level, delay, reason, readat, wrote)
  local r = open(key, raw)
  local s = held(r, token)
  if s ~= 7 then return reply(s) end
  local x = r.x
  if x and x.b or wrote ~= '' then
    local m, own = merge(merge({}, x and x.b or ''), wrote), merge({}, wrote)
    for c, e, v in string.gmatch(readat, MARK) do
      local o = m[c]
      -- What was written stays whatever was read: the next worker may read elsewhere.
      if o and not own[c] and markcmp(o[1], o[2], e, v) <= 0 then m[c] = nil end
    end
    local lines = join(m)
    for i = #lines, MAXMARKS + 1, -1 do lines[i] = nil end
    setBarrier(key, r, concat(lines))
  end
  if reason ~= '' then more(r).w = reason
  elseif outcome <= 2 and r.x then r.x.w = nil end
  x = more(r)
  local dirty, lvl, g, ad = r.s == DIRTY, r.l, r.g, r.ad
  if level >= 0 then lvl = level end
  unlease(key, r)
  r.a = 0

  local bury, wait = outcome == 6, -1 -- -1: no second run
  if outcome == 2 then
    x.f = nil
  elseif outcome == 3 then
    bury = maxRetries > 0 and (x.f or 0) >= maxRetries
    if not bury then wait = charge(r); retried = retried + 1 end
  elseif outcome == 4 then
    x.f = nil
    wait = delay; retried = retried + 1
  elseif outcome == 5 then
    wait = delay
  end
  local status, readyAt, requeues = 7, nil, x.f
  if wait > 0 and not (dirty and absorb) then
    schedule(key, r, now + wait, lvl, false, outcome == 3, nil)
    readyAt = x.u
  end
  if dirty then -- Q-02: exactly one more run, at the tail
    status, readyAt = 8, now
    if wait == 0 then lvl = max(lvl, g) else lvl = g end
    r.ad = r.di
    push(key, r, lvl)
    absorbDelay(key, r)
  elseif wait == 0 then
    readyAt = now
    if outcome ~= 5 then r.ad = now; added = added + 1 else r.ad = ad end
    push(key, r, lvl)
    absorbDelay(key, r)
  elseif bury then
    x.x = 1
    ndead = ndead + 1
    buried = buried + 1
    unschedule(key, r)
  end
  tidy(key, r)
  reply(status, requeues, readyAt)
end
