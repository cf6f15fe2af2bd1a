-- ARGV from 3: group, sequence, attempt, the new timeout in microseconds.
if not options() then
  return NO_QUEUE
end
if delivery_of(ARGV[3], ARGV[4], ARGV[5]) then
  redis.call('ZADD', WITH, 'XX', now + ARGV[6], ARGV[3])
  is_changed = true
end
return answer(0)
