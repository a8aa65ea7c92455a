-- One turn of one partition of a queue; core/workqueue has the rules. What is
-- known of a key is one record in the state hash. A turn reads the records of
-- its keys at once, works on them in memory and writes those that changed at
-- its end. It refuses before its first write or happens whole.
--
-- Most operations are plain: a key that nothing is known of is added, leased,
-- and done with. They never leave strings: the record of a plain ready or
-- leased key is made of pieces that all keys of a turn share. Everything else
-- takes the general way, with the record unpacked into a table.
--
-- Commands: those of Redis 6.2.
local st, dly, lease, gc, stale = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local hid, hz, bo, boz, rq = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local LINES = 11 -- KEYS[LINES + level]
local call, unpack, tonumber, type, next = redis.call, unpack, tonumber, type, next
local max, min, ceil, floor = math.max, math.min, math.ceil, math.floor
local sub, byte, char, rep, format = string.sub, string.byte, string.char, string.rep, string.format
local spack, sunpack, concat = struct.pack, struct.unpack, table.concat
local mpack, munpack = cmsgpack.pack, cmsgpack.unpack
local CHUNK, SWEEP, MAXMARKS, MAXTRACES, MAXTOKENS = 2000, 256, 64, 8, 4096
local EXPECT, MAXDELAY = 300e6, 10 * 365 * 24 * 3600 * 1e6

-- Numbers become text by this only: ".." keeps 14 digits.
local function S(n) return format('%.0f', n) end

local seq, again, skew, run, ver, grows, away, keys, runs, toks, args, takes = munpack(ARGV[1])
local leaseFor, retention, maxRetries, absorb, reserveOnce, aging, qps, burst, maxProc = munpack(ARGV[2])

if again then -- a retry after a lost reply: answer what was answered
  local was = call('GET', rq)
  local head = mpack(seq)
  if was and sub(was, 1, #head) == head then return was end
end

-- keys[1] is '', the control record. vals[i] is what is stored of keys[i].
local vals
if #keys <= CHUNK then
  vals = call('HMGET', st, unpack(keys))
else
  vals = {}
  for s = 1, #keys, CHUNK do
    for _, v in ipairs(call('HMGET', st, unpack(keys, s, min(s + CHUNK - 1, #keys)))) do vals[#vals + 1] = v end
  end
end
local control = vals[1]
if not control then return redis.error_reply('DPNOQUEUE no such queue') end
local hold, tok, flags, nready, ndirty, nleased, ndelayed, ndead, ngc, nstale, nhold, granted, lines, ttat, nbo,
  ver0, run0, tatsAt = sunpack(CONTROL, control)
if ver0 ~= ver then return redis.error_reply('DPCONFIG the configuration changed') end

local T = call('TIME')
local now = T[1] * 1000000 + T[2] + skew
if run ~= run0 and run0 ~= '' then hold = now + leaseFor end -- restarted: old leases may still be worked on
local closed, paused = flags % 2 == 1, flags >= 2
local hadready = nready > 0
local added, retried, promoted, expired, buried, spent = 0, 0, 0, 0, 0, 0

-- The answer: a status for each operation, and after a status above 127 what
-- else there is to say, in E.
local R, nr, E, ne = {}, 0, {}, 0
local function say(v) ne = ne + 1; E[ne] = v end
local function reply(status, requeues, readyAt, deadline)
  nr = nr + 1
  if requeues or readyAt or deadline then
    R[nr] = char(status + 128)
    say(requeues or 0); say(readyAt or 0); say(deadline or 0)
  else
    R[nr] = char(status)
  end
end

local function chunked(cmd, key, list)
  local n = 0
  for s = 1, #list, 2 * CHUNK do
    n = n + call(cmd, key, unpack(list, s, min(s + 2 * CHUNK - 1, #list)))
  end
  return n
end
