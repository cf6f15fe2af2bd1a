-- ARGV from 3: the most results.
if not options() then
  return NO_QUEUE
end
expire_overdue()
local alarms = {}
for _, sequence in ipairs(redis.call('ZRANGE', FAILED, attempts_max, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[3])) do
  local alarm = letter(sequence)
  if head_of(alarm[1]) == sequence then
    alarms[#alarms + 1] = alarm
  end
end
return answer(alarms)
