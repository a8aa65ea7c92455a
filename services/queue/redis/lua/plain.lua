
-- Read what to do as runs of one code: 0 to 7 are plain adds at that level, 8
-- and 9 plain settlements (done, forget), whose tokens are in toks behind the
-- kind of a leased record, so that one comparison tells that the lease is live
-- and the key is plain.
do
  local i, tp = 1, 1 -- places in keys, toks
  for at = 1, #runs, 2 do
    local code, n = runs[at], runs[at + 1]
    if code < 8 and m.closed then
      i = i + n
      m.nr = m.nr + 1; R[m.nr] = rep('\5', n)
    elseif code < 8 then
      local fresh = spack('>BBI7', 70, code, now)
      local q = buf[code]
      if not q then q = {}; buf[code] = q end
      local nq, same, new = #q, 0, 0 -- same: answers at the run's end that are all Queued
      for _ = 1, n do
        i = i + 1
        local key = keys[i]
        local c = cur[key]
        local v = c
        if v == nil then v = vals[i] end
        if not v then
          cur[key] = fresh
          nq = nq + 1
          q[nq] = key
          same = same + 1
        else
          if same > 0 then m.nr = m.nr + 1; R[m.nr] = rep('\1', same); new = new + same; same = 0 end
          local k, l
          if c == nil or v == fresh then k, l = byte(v, 1, 2) end
          if (k == 70 or k == 82) and l >= code then -- a plain key that is ready: nothing changes
            m.nr = m.nr + 1; R[m.nr] = '\2'
          elseif k == 68 and byte(v, 30) >= code then -- dirty already
            m.nr = m.nr + 1; R[m.nr] = '\3'
          else
            general().add(key, vals[i], code, 0, false, false, nil, '', '')
            nq = #q
          end
        end
      end
      if same > 0 then m.nr = m.nr + 1; R[m.nr] = rep('\1', same); new = new + same end
      m.nready, m.added = m.nready + new, m.added + new
    elseif code < 10 then
      local same = 0
      for _ = 1, n do
        i = i + 1
        local key, raw, t = keys[i], vals[i], sub(toks, tp, tp + 8)
        tp = tp + 9
        if raw and sub(raw, 1, 9) == t and cur[key] == nil then
          cur[key] = false
          ngone = ngone + 1
          gone[ngone] = key
          same = same + 1
        else
          if same > 0 then m.nr = m.nr + 1; R[m.nr] = rep('\7', same); same = 0 end
          general().done(key, raw, sub(t, 2), code - 7, '')
        end
      end
      if same > 0 then m.nr = m.nr + 1; R[m.nr] = rep('\7', same) end
    else
      local f = general()[code]
      for _ = 1, n do
        i = i + 1
        f(keys[i], vals[i])
      end
    end
  end
  m.nleased = m.nleased - ngone
end
