
-- What a corrected clock makes of times that are near: what was granted while
-- it was wrong, by a server that could not know, lasts as long as it was
-- granted for at least, and nothing longer than the longest lease.
local function step()
  if shift == 0 then return end
  local most = now + maxLease
  if m.hold > 0 then m.hold = min(max(m.hold, m.hold + shift), most) end
  if qps > 0 then m.ttat = min(m.ttat, now + burst * (1e6 / qps)) end
  if m.nleased > 0 then
    local all, set = call('ZRANGE', lease, 0, -1, 'WITHSCORES'), {}
    for j = 1, #all, 2 do
      local at = tonumber(all[j + 1])
      if at < math.huge then
        set[#set + 1], set[#set + 2] = S(min(max(at, at + shift), most)), all[j]
      end
    end
    chunked('ZADD', lease, set)
    local ids = call('ZRANGE', hz, 0, -1)
    for j = 1, #ids do holderUntil(ids[j], most) end
  end
end
