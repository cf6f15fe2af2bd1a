-- ARGV from 3: the deduplication window in microseconds, then for each message its group, '1' and its
-- deduplication id or '0' and nothing, its body.
if not options() then
  return NO_QUEUE
end
redis.call('ZREMRANGEBYSCORE', IDS, '-inf', now - ARGV[3])
-- Sequences follow the server's time, so that a number whose message was lost with the server is not given again.
local last = tonumber(redis.call('HGET', OPTIONS, 'last') or '0')
local sent = 0
for argument = 4, #ARGV - 1, 4 do
  local group, has_id, id, body = ARGV[argument], ARGV[argument + 1], ARGV[argument + 2], ARGV[argument + 3]
  if has_id == '0' or redis.call('ZADD', IDS, 'NX', now, id) == 1 then
    last = math.max(last + 1, now)
    local sequence = string.format('%016d', last)
    redis.call('ZADD', ORDER, 0, prefix(group) .. sequence)
    redis.call('HSET', MESSAGES, 'b' .. sequence, body, 'g' .. sequence, group)
    if has_id == '1' then
      redis.call('HSET', MESSAGES, 'i' .. sequence, id)
    end
    if redis.call('HEXISTS', TAKEN, group) == 0 and redis.call('ZADD', IDLE, 'NX', now, group) == 1 then
      redis.call('PUBLISH', ARGV[1], ARGV[2])
    end
    sent = sent + 1
    is_changed = true
  end
end
if sent > 0 then
  redis.call('HSET', OPTIONS, 'last', string.format('%.0f', last))
end
return answer(sent)
