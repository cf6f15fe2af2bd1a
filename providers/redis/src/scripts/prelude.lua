-- Above this stands `local STARTED = N`: the incarnation that the loader of this text began (see durability.rs),
-- or 0 in a cluster, which has no clock. A server that lost that beginning must not run this text.
local CLOCK = KEYS[1]

local function point()
  if STARTED == 0 then
    return '0', '0'
  end
  local clock = redis.call('HMGET', CLOCK, 'incarnation', 'position')
  return clock[1], clock[2]
end

-- Takes the next place in the store's order. Called once by each script that changes something, after its last
-- refusal, so that an error never leaves half a change.
local function advance()
  if STARTED ~= 0 then
    redis.call('HINCRBY', CLOCK, 'position', 1)
  end
end

if STARTED ~= 0 and tonumber(redis.call('HGET', CLOCK, 'incarnation') or '0') < STARTED then
  return redis.error_reply('LANDFASTSTALE the store has lost the beginning of this incarnation')
end
