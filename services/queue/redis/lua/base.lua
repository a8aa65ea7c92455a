-- One transaction of one partition of a queue; core/workqueue has the rules. What is
-- known of a key is one record in the state hash. A transaction reads the records of
-- its keys at once, works on them in memory and writes those that changed at
-- its end. It refuses before its first write, or happens whole.
--
-- Most operations are plain: a key that nothing is known of is added, leased,
-- and done with. They never leave strings: the record of a plain ready or
-- leased key is made of pieces that all keys of a transaction share. Everything else
-- goes the general way, with the record unpacked into a table.
--
-- The state of a transaction is in the table m, and what only few transactions need is in
-- functions that make their inner functions when they are first called: to
-- make a function in Lua 5.1 costs a search for each local it uses.
local call, unpack, tonumber, type, next = redis.call, unpack, tonumber, type, next
local max, min, ceil, floor = math.max, math.min, math.ceil, math.floor
local sub, byte, char, rep, format = string.sub, string.byte, string.char, string.rep, string.format
local spack, sunpack, mpack, munpack, concat = struct.pack, struct.unpack, cmsgpack.pack, cmsgpack.unpack, table.concat
local CHUNK, SWEEP, SKIP, MAXMARKS, MAXTRACES, MAXTOKENS, MAXHOLDERS = 2000, 256, 2000, 64, 8, 4096, 3
-- With more than NARROW leases a member goes into their sorted set that makes
-- it one that is not searched from its start. No key is like it.
local NARROW, WIDE = 20, string.rep('\255', 65)
local EXPECT, MAXDELAY = 300e6, 10 * 365 * 24 * 3600 * 1e6
local IDLE, READY, LEASED, DIRTY = 0, 1, 2, 3 -- states of a record
local st, dly, lease, gc, stale, rq, LINES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[10], 11

-- Numbers become text by this only: ".." keeps 14 digits.
local function S(n) return format('%.0f', n) end

-- chunked calls a command with as many members as a list has, and sums what it answers.
local function chunked(cmd, key, list)
  local n = 0
  for s = 1, #list, 2 * CHUNK do
    n = n + call(cmd, key, unpack(list, s, min(s + 2 * CHUNK - 1, #list)))
  end
  return n
end

local function transact()
