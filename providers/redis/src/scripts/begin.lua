-- Begins incarnation STARTED: what the one before it left behind ends here.
-- KEYS: the clock, the ends. ARGV: how many ends are kept.
local previous = redis.call('HMGET', KEYS[1], 'incarnation', 'position')
local position = previous[2] or '0'
if previous[1] then
  if tonumber(previous[1]) >= STARTED then
    return redis.error_reply('LANDFASTBEHIND ' .. previous[1])
  end
  redis.call('ZADD', KEYS[2], previous[1], previous[1] .. ':' .. position)
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - ARGV[1])
end
redis.call('HSET', KEYS[1], 'incarnation', string.format('%.0f', STARTED), 'position', position)
return position
