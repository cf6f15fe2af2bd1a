-- Where the store stands, and where incarnation ARGV[1] ended. ARGV[2] 'w' writes, so that a WAIT behind this
-- script, on its connection, covers everything before it.
-- KEYS: the clock, the ends.
if ARGV[2] == 'w' then
  advance()
end
local incarnation, position = point()
local ended = redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[1], 'BYSCORE', 'LIMIT', 0, 1)
return { incarnation, position, ended[1] or '' }
