-- Deletes a partition of a queue, if its data is still the one that is meant: the queue may have been
-- deleted and made again meanwhile. It leaves a note for a time, which tells it from data that was lost.
-- KEYS: meta, state hash, all others. ARGV: 1 to delete although keys are leased, milliseconds that the
-- note lasts, the note, the version with which the data began.
-- Returns whether it is deleted, how many keys are leased, how many there are, and whether it was there.
local was = redis.call('HMGET', KEYS[1], 'born', 'gone')
if was[2] == ARGV[3] then return {1, 0, 0, 0} end -- the reply was lost
if (was[1] or '-') ~= ARGV[4] then return {0, 0, 0, 0} end
local control = redis.call('HGET', KEYS[2], '')
local leased, held = 0, 0
if control then
  local c = {struct.unpack(CONTROL, control)}
  leased, held = c[6], c[4] + c[6] + c[7] + c[8]
  if leased > 0 and ARGV[1] ~= '1' then return {0, leased, held, 1} end
end
redis.call('UNLINK', unpack(KEYS)) -- it comes first, so that a full Redis lets the rest be done
redis.call('HSET', KEYS[1], 'gone', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, leased, held, control and 1 or 0}
