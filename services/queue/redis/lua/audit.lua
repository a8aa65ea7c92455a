
-- Some of the keys are looked at, and each that is held without a deadline,
-- after a loss or by a hand, gets one: as late as any that a living holder can
-- have been granted, so no key is handed out twice for it. Nothing else would
-- end its lease. It is done when everything else is, but what has to be written.
if m.audit then
  local found, deadline = 0, now + maxLease
  -- So many deadlines as held keys: nothing is missing, or as much is too much.
  local sure = call('ZCARD', lease) - (m.wide and 1 or 0) == m.nleased
  local at, left, bytes = S(m.audit), sure and SWEEP or 8 * SWEEP, 2 ^ 20
  repeat
    local page = call('HSCAN', st, at, 'COUNT', 64)
    local some = page[2]
    at, left = page[1], left - #some / 2
    for j = 1, #some, 2 do
      local key, raw = some[j], some[j + 1]
      bytes = bytes - #raw
      local v, id = cur[key], nil
      if v == nil then v = raw end
      if type(v) == 'table' then
        if v.s >= LEASED then id = v.h end
      elseif v and key ~= '' then
        local k = byte(v) % 32
        if k == 12 or k == 4 then id = sub(v, 13, 15) end -- L, l, D or d
      end
      if id and not call('ZSCORE', lease, key) then
        found = found + call('ZADD', lease, S(deadline), key)
        if holderOf(id)[1] ~= '' then holderUntil(id, deadline) end -- else its number was free
      end
    end
  until at == '0' or left <= 0 or bytes <= 0
  if found > 0 and (firstlease == 0 or deadline < firstlease) then firstlease = deadline end
  -- The count is raised as soon as it is known to be too low, for at zero all
  -- deadlines go, and lowered at the end, when every held key has one.
  local held = call('ZCARD', lease) - (m.wide and 1 or 0)
  if held > m.nleased or held < m.nleased and at == '0' then
    m.wide = not not call('ZSCORE', lease, WIDE)
    m.nleased = call('ZCARD', lease) - (m.wide and 1 or 0)
  end
  E[m.auditAt], E[m.auditAt + 1] = found, tonumber(at)
end
