-- Returns the point of the clock, and the final position of incarnation ARGV[1]. With 'w' as
-- ARGV[2] it writes, so that a WAIT after this script on its connection covers all earlier
-- commands. KEYS: the clock, the final positions.
if ARGV[2] == 'w' then
  advance()
end
local incarnation, position = point()
local ended = redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[1], 'BYSCORE', 'LIMIT', 0, 1)
return { incarnation, position, ended[1] or '' }
