-- Begins incarnation STARTED and records the final position of the previous one. KEYS: the clock,
-- the final positions. ARGV: how many final positions are kept.
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
