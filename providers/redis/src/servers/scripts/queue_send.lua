-- ARGV from 3: the deduplication window in microseconds, then for each message its group, '1' and
-- its deduplication id (or '0' and nothing), and its body.
if not options() then
  return NO_QUEUE
end
redis.call('ZREMRANGEBYSCORE', IDS, '-inf', now - ARGV[3])
local last = tonumber(redis.call('HGET', OPTIONS, 'last') or '0')
local sent = 0
for argument = 4, #ARGV - 1, 4 do
  local group, has_id, id, body = ARGV[argument], ARGV[argument + 1], ARGV[argument + 2], ARGV[argument + 3]
  if has_id == '0' or redis.call('ZADD', IDS, 'NX', now, id) == 1 then
    last = append(group, has_id == '1' and id, body, last)
    sent = sent + 1
  end
end
if sent > 0 then
  redis.call('HSET', OPTIONS, 'last', string.format('%.0f', last))
end
return answer(sent)
