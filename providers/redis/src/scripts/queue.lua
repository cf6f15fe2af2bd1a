-- One queue: what every script about it knows. A group is either idle (its head may be given from its score in
-- IDLE on), or with a consumer (until its score in WITH; TAKEN says which is its last message there), or empty.
--
-- KEYS from 2: options, the order of messages by group, the messages, and the groups' states.
local OPTIONS, ORDER, MESSAGES, TAKEN, IDLE = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local WITH, FAILED, DEAD, IDS = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
-- ARGV[1] is the channel that tells consumers, ARGV[2] the queue's name.
local NO_QUEUE = redis.error_reply('LANDFASTNOQUEUE the queue does not exist')
local OVERDUE_GROUPS_MAX = 100

-- What follows adds one function each; the last argument says which is meant.
local operations = {}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] -- microseconds, exact in a double
-- For each dead letter that comes beyond the bound so many of the oldest go: two, so that a bound that was lowered is reached.
local LETTERS_GO_MAX = 2
local visibility, attempts_max, has_dead_letters, letters_max
local is_changed = false

local function options()
  local found = redis.call('HMGET', OPTIONS, 'visibility_us', 'attempts_max', 'dead_letters', 'letters_max')
  if not found[1] then
    return false
  end
  visibility, attempts_max, has_dead_letters = tonumber(found[1]), tonumber(found[2]), found[3] == '1'
  -- A queue of an earlier release, which nobody has made again yet, keeps all until then.
  letters_max = tonumber(found[4]) or math.huge
  return true
end

-- Members of ORDER: the group's length, the group, the sequence in sixteen digits.
local function prefix(group)
  return string.format('%03d', #group) .. group
end

local function sequences(group, count)
  local start = '[' .. prefix(group)
  local found = redis.call('ZRANGE', ORDER, start .. '0', start .. '9999999999999999', 'BYLEX', 'LIMIT', 0, count)
  for place, member in ipairs(found) do
    found[place] = string.sub(member, -16)
  end
  return found
end

local function head_of(group)
  return sequences(group, 1)[1]
end

local function failures_of(sequence)
  return tonumber(redis.call('HGET', MESSAGES, 'f' .. sequence) or '0')
end

local function fail(sequence, reason)
  local failures = redis.call('HINCRBY', MESSAGES, 'f' .. sequence, 1)
  redis.call('HSET', MESSAGES, 'r' .. sequence, reason)
  redis.call('ZADD', FAILED, failures, sequence)
  is_changed = true
end

local function leave_group(group, sequence)
  redis.call('ZREM', ORDER, prefix(group) .. sequence)
  redis.call('ZREM', FAILED, sequence)
  is_changed = true
end

local function forget(sequence)
  redis.call('HDEL', MESSAGES, 'a' .. sequence, 'b' .. sequence, 'd' .. sequence, 'f' .. sequence, 'g' .. sequence,
    'i' .. sequence, 'r' .. sequence)
end

-- Letters are numbered as they come, and called by that first: so whoever reads on behind one finds the next also where it is gone.
-- Numbers follow the server's time, as sequences do.
local function number_letter(sequence)
  local number = math.max(tonumber(redis.call('HGET', OPTIONS, 'buried') or '0') + 1, now)
  redis.call('HSET', OPTIONS, 'buried', string.format('%.0f', number))
  redis.call('HSET', MESSAGES, 'd' .. sequence, string.format('%.0f', number))
end

local function number_of_letter(sequence)
  -- One that an earlier release has buried has none until its queue is made again.
  return redis.call('HGET', MESSAGES, 'd' .. sequence) or '0'
end

-- It is a dead letter from now on.
local function bury(group, sequence)
  leave_group(group, sequence)
  number_letter(sequence)
  local excess = redis.call('RPUSH', DEAD, sequence) - letters_max
  for _ = 1, math.min(excess, LETTERS_GO_MAX) do
    forget(redis.call('LPOP', DEAD))
  end
end

local function idle(group, visible)
  redis.call('ZADD', IDLE, visible, group)
  redis.call('PUBLISH', ARGV[1], ARGV[2])
end

-- The group is with nobody now: its next message may be given from `visible` on. A head that failed for good
-- moves to the dead letters first, where the queue has them.
local function rest(group, visible)
  redis.call('HDEL', TAKEN, group)
  redis.call('ZREM', WITH, group)
  is_changed = true
  local head = head_of(group)
  while head and has_dead_letters and failures_of(head) >= attempts_max do
    bury(group, head)
    visible = now
    head = head_of(group)
  end
  if head then
    idle(group, visible)
  else
    redis.call('ZREM', IDLE, group)
  end
end

-- Puts a message behind its group under the next sequence after `last`, and returns that.
local function append(group, id, body, last)
  -- Sequences follow the server's time, so that a number whose message was lost with the server is not given again.
  local number = math.max(last + 1, now)
  local sequence = string.format('%016d', number)
  redis.call('ZADD', ORDER, 0, prefix(group) .. sequence)
  redis.call('HSET', MESSAGES, 'b' .. sequence, body, 'g' .. sequence, group)
  if id then
    redis.call('HSET', MESSAGES, 'i' .. sequence, id)
  end
  if redis.call('HEXISTS', TAKEN, group) == 0 and redis.call('ZADD', IDLE, 'NX', now, group) == 1 then
    redis.call('PUBLISH', ARGV[1], ARGV[2])
  end
  is_changed = true
  return number
end

-- Takes back what consumers have kept for longer than they may.
local function settle()
  local overdue = redis.call('ZRANGE', WITH, '-inf', now, 'BYSCORE', 'LIMIT', 0, OVERDUE_GROUPS_MAX)
  for _, group in ipairs(overdue) do
    local head = head_of(group)
    if head then
      fail(head, 'the visibility timeout ran out')
    end
    rest(group, now)
  end
end

-- The last message of `group` that is with its consumer, and until when the rest stays hidden afterwards, if
-- the handle names its present delivery.
local function held(group, sequence, attempt)
  local taken = redis.call('HGET', TAKEN, group)
  if not taken or sequence > string.sub(taken, 1, 16) then
    return nil
  end
  local message = redis.call('HMGET', MESSAGES, 'a' .. sequence, 'g' .. sequence)
  if message[1] ~= attempt or message[2] ~= group then
    return nil
  end
  return string.sub(taken, 1, 16), tonumber(string.sub(taken, 18))
end

local function letter(sequence)
  local message = redis.call('HMGET', MESSAGES, 'g' .. sequence, 'b' .. sequence, 'a' .. sequence, 'r' .. sequence, 'i' .. sequence)
  return { message[1], sequence, number_of_letter(sequence), message[2], message[3] or '0', message[4] or '', message[5] }
end

local function answer(value)
  if is_changed then
    advance()
  end
  local incarnation, position = point()
  return { incarnation, position, value }
end
