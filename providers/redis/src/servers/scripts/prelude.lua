-- The loader puts `local STARTED = N` above this line: the incarnation that it begins (see
-- single.rs), or 0 in a cluster, which has no clock. A server that lost the beginning of that
-- incarnation must not run this text.
local CLOCK = KEYS[1]

local function point()
  if STARTED == 0 then
    return '0', '0'
  end
  local clock = redis.call('HMGET', CLOCK, 'incarnation', 'position')
  return clock[1], clock[2]
end

-- Advances the store's clock. Each script that changes something calls it once, after its last
-- check, so that an error never leaves half a change.
local function advance()
  if STARTED ~= 0 then
    redis.call('HINCRBY', CLOCK, 'position', 1)
  end
end

if STARTED ~= 0 and tonumber(redis.call('HGET', CLOCK, 'incarnation') or '0') < STARTED then
  return redis.error_reply('LANDFASTSTALE the store has lost the beginning of this incarnation')
end
