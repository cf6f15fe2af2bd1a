-- ARGV from 3: visibility in microseconds, attempts, '1' for dead letters, how many of those are
-- kept.
redis.call('HSET', OPTIONS, 'visibility_us', ARGV[3], 'attempts_max', ARGV[4], 'dead_letters', ARGV[5],
  'letters_max', ARGV[6])
is_changed = true
options()
-- Number the dead letters of an earlier release. They are the last ones, or all.
if (redis.call('LINDEX', DEAD, -1) and number_of_letter(redis.call('LINDEX', DEAD, -1))) == '0' then
  for _, sequence in ipairs(redis.call('LRANGE', DEAD, 0, -1)) do
    number_dead_letter(sequence)
  end
end
if has_dead_letters then
  for _, sequence in ipairs(redis.call('ZRANGE', FAILED, attempts_max, '+inf', 'BYSCORE')) do
    local group = redis.call('HGET', MESSAGES, 'g' .. sequence)
    if redis.call('HEXISTS', TAKEN, group) == 0 then
      end_delivery(group, now)
    end
  end
end
return answer(0)
