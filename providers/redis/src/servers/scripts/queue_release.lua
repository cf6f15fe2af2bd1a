-- ARGV from 3: group, sequence, attempt, delay in microseconds, reason.
if not options() then
  return NO_QUEUE
end
local group, sequence, visible = ARGV[3], ARGV[4], now + ARGV[6]
if delivery_of(group, sequence, ARGV[5]) then
  fail(sequence, ARGV[7])
  local start = prefix(group)
  local before = redis.call('ZRANGE', ORDER, '(' .. start .. sequence, '[' .. start .. '0', 'BYLEX', 'REV', 'LIMIT', 0, 1)
  if before[1] then
    redis.call('HSET', TAKEN, group, string.sub(before[1], -16) .. ':' .. string.format('%.0f', visible))
  else
    end_delivery(group, visible)
  end
end
return answer(0)
