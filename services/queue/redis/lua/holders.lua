
-- Holders by number, so that a leased key's record has three bytes of its
-- holder: in the hash hid 'n'..name is number and time, 'i'..number the name.
-- The time, also the score in hz, is after the deadline of every lease that
-- names it, so a number whose time is before the first deadline is free.
local hid, hz = KEYS[6], KEYS[7]
local holder, late = {}, nil -- by number {name, time}; those whose time is to be written
local function holderOf(id)
  local h = holder[id]
  if not h then
    local name = call('HGET', hid, 'i' .. id) or ''
    local v = call('HGET', hid, 'n' .. name)
    h = {name, v and sunpack('>d', v, 4) or 0}
    holder[id] = h
  end
  return h
end
-- holderUntil makes a number outlast a deadline, and writes it seldom.
local function holderUntil(id, at)
  local h = holderOf(id)
  if at > h[2] then
    h[2] = at + max(at - now, 60e6)
    late = late or {}
    late[id] = h
  end
end
local function newHolder(name, firstlease)
  if firstlease > 0 then -- for each that comes two may go
    local free = call('ZRANGEBYSCORE', hz, '-inf', '(' .. S(firstlease), 'LIMIT', 0, 2)
    for j = 1, #free do
      call('HDEL', hid, 'n' .. holderOf(free[j])[1], 'i' .. free[j])
      call('ZREM', hz, free[j])
    end
  end
  local id
  repeat
    m.nhold = m.nhold + 1
    id = spack('>I3', m.nhold % 16777216)
  until call('HEXISTS', hid, 'i' .. id) == 0
  holder[id] = {name, 0}
  return id
end
