
-- Holders by number, so that a leased key's record has three bytes of its
-- holder: in the hash hid 'n'..name is number and time, 'i'..number the name.
-- The time, also the score in hz, is after the deadline of every lease that
-- names it, so a number whose time is before the first deadline is free.
local holders = {}
do
  local known = {} -- by number: {name, time}
  local ids = {} -- by name
  local function write(id, h, til)
    h[2] = til
    call('HSET', hid, 'n' .. h[1], id .. spack('>d', til), 'i' .. id, h[1])
    call('ZADD', hz, S(til), id)
  end
  local function load(id)
    local h = known[id]
    if not h then
      local name = call('HGET', hid, 'i' .. id) or ''
      local v = call('HGET', hid, 'n' .. name)
      h = {name, v and sunpack('>d', v, 4) or 0}
      known[id] = h
    end
    return h
  end
  function holders.name(id) return load(id)[1] end
  -- keep makes the number outlast a deadline.
  local late = {}
  function holders.keep(id, at)
    local h = load(id)
    if at > h[2] then h[2] = at; late[id] = h end
  end
  function holders.flush()
    for id, h in next, late do write(id, h, h[2]) end
  end
  -- take is the number of a holder that leases until at.
  function holders.take(name, at, firstlease)
    local id = ids[name]
    if not id then
      local v = nhold > 0 and call('HGET', hid, 'n' .. name)
      if v then
        id = sub(v, 1, 3)
        known[id] = {name, sunpack('>d', v, 4)}
      else
        if firstlease > 0 then -- for each that comes two may go
          for _, old in ipairs(call('ZRANGEBYSCORE', hz, '-inf', '(' .. S(firstlease), 'LIMIT', 0, 2)) do
            call('HDEL', hid, 'n' .. load(old)[1], 'i' .. old)
            call('ZREM', hz, old)
          end
        end
        repeat
          nhold = nhold + 1
          id = spack('>I3', nhold % 16777216)
        until call('HEXISTS', hid, 'i' .. id) == 0
        known[id] = {name, 0}
      end
      ids[name] = id
    end
    local h = known[id]
    if at > h[2] then write(id, h, at + max(at - now, 60e6)) end
    return id
  end
end
