-- Ends a partition of a queue that nobody uses, in steps that a use undoes. KEYS: meta, state hash, all others.
-- ARGV: the step; the expiry's id; when the partition was used last, as the caller read it; milliseconds that the note
-- of the end lasts; skew of the clock. Returns 1 when the step was done.
--   seal    transactions are refused from now on, unless it holds a key or was used since
--   expire  seals and ends it at once: of a queue with one partition
--   end     ends what this expiry sealed
--   unseal  transactions are taken again, if this expiry sealed it
--   keep    transactions are taken again, and it is used now, if it has the seal of this id, or whatever it has without one
local meta, st = KEYS[1], KEYS[2]
local what, id = ARGV[1], ARGV[2]
local call = redis.call
local was = call('HMGET', meta, 'ver', 'seal', 'idle')
local control = call('HGET', st, '')
if not control then return was[3] and what ~= 'keep' and 1 or 0 end -- it has ended
local T = call('TIME')
local c = {struct.unpack(CONTROL, control)}
local run = string.match(c[18], ' (.*)')
local now = T[1] * 1000000 + T[2] + tonumber(ARGV[5]) + tonumber(run or 0)
local function write()
  call('HSET', st, '', struct.pack(CONTROL, unpack(c, 1, 18)) .. string.sub(control, c[19]))
end

if what == 'seal' or what == 'expire' then
  local keys = c[4] + c[6] + c[7] + c[8]
  if keys > 0 or c[1] > now or string.format('%.0f', c[16]) ~= ARGV[3] then return 0 end
elseif (what ~= 'keep' or id ~= '') and was[2] ~= id then
  return 0
end
if what == 'expire' or what == 'end' then
  call('UNLINK', unpack(KEYS))
  call('HSET', meta, 'gone', '1', 'idle', '1')
  call('PEXPIRE', meta, ARGV[4])
  return 1
end
call('HDEL', meta, 'seal') -- it comes first, so that a full Redis lets the rest be done
if what == 'seal' then
  call('HSET', meta, 'seal', id)
  c[17] = '' -- no transaction has this version
else
  c[17] = was[1]
  if what == 'keep' then c[16] = now end
end
write()
return 1
