-- One queue: the part that all its scripts share. A group is idle (its first message may be
-- delivered from its score in IDLE on), or with a consumer (until its score in WITH; TAKEN names
-- the last message of the delivery), or empty.
--
-- KEYS from 2: options, the order of messages by group, the messages, and the states of the groups.
local OPTIONS, ORDER, MESSAGES, TAKEN, IDLE = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local WITH, FAILED, DEAD, IDS = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
-- ARGV[1] is the channel for wake-ups, ARGV[2] the name of the queue.
local NO_QUEUE = redis.error_reply('LANDFASTNOQUEUE the queue does not exist')
local OVERDUE_GROUPS_MAX = 100

-- Each of the following texts adds one function; the last argument selects it.
local operations = {}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] -- microseconds, exact in a double
-- Each new dead letter beyond the limit removes up to two of the oldest. With two, a lowered limit
-- is reached.
local REMOVED_PER_LETTER_MAX = 2
local visibility, attempts_max, has_dead_letters, letters_max
local is_changed = false

local function options()
  local found = redis.call('HMGET', OPTIONS, 'visibility_us', 'attempts_max', 'dead_letters', 'letters_max')
  if not found[1] then
    return false
  end
  visibility, attempts_max, has_dead_letters = tonumber(found[1]), tonumber(found[2]), found[3] == '1'
  -- A queue of an earlier release has no limit until it is created again.
  letters_max = tonumber(found[4]) or math.huge
  return true
end

-- Members of ORDER: the length of the group's name, the name, the sequence in sixteen digits.
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

local function remove_from_group(group, sequence)
  redis.call('ZREM', ORDER, prefix(group) .. sequence)
  redis.call('ZREM', FAILED, sequence)
  is_changed = true
end

local function forget(sequence)
  redis.call('HDEL', MESSAGES, 'a' .. sequence, 'b' .. sequence, 'd' .. sequence, 'f' .. sequence, 'g' .. sequence,
    'i' .. sequence, 'r' .. sequence)
end

-- Dead letters are numbered in the order of their arrival, and the number comes first in their id.
-- A reader that continues after a removed dead letter therefore finds the next one. Numbers follow
-- the server's time, as sequences do.
local function number_dead_letter(sequence)
  local number = math.max(tonumber(redis.call('HGET', OPTIONS, 'buried') or '0') + 1, now)
  redis.call('HSET', OPTIONS, 'buried', string.format('%.0f', number))
  redis.call('HSET', MESSAGES, 'd' .. sequence, string.format('%.0f', number))
end

local function number_of_letter(sequence)
  -- A dead letter of an earlier release has no number until its queue is created again.
  return redis.call('HGET', MESSAGES, 'd' .. sequence) or '0'
end

-- Moves the message to the dead letters.
local function dead_letter(group, sequence)
  remove_from_group(group, sequence)
  number_dead_letter(sequence)
  local excess = redis.call('RPUSH', DEAD, sequence) - letters_max
  for _ = 1, math.min(excess, REMOVED_PER_LETTER_MAX) do
    forget(redis.call('LPOP', DEAD))
  end
end

local function idle(group, visible)
  redis.call('ZADD', IDLE, visible, group)
  redis.call('PUBLISH', ARGV[1], ARGV[2])
end

-- Ends the delivery of the group: its next message may be delivered from `visible` on. First
-- messages that failed too often move to the dead letters before that, if the queue has them.
local function end_delivery(group, visible)
  redis.call('HDEL', TAKEN, group)
  redis.call('ZREM', WITH, group)
  is_changed = true
  local head = head_of(group)
  while head and has_dead_letters and failures_of(head) >= attempts_max do
    dead_letter(group, head)
    visible = now
    head = head_of(group)
  end
  if head then
    idle(group, visible)
  else
    redis.call('ZREM', IDLE, group)
  end
end

-- Appends a message to its group under the next sequence after `last`, and returns the sequence.
local function append(group, id, body, last)
  -- Sequences follow the server's time, so that the number of a message that the server lost is not
  -- reused.
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

-- Ends the deliveries whose visibility timeout has passed.
local function expire_overdue()
  local overdue = redis.call('ZRANGE', WITH, '-inf', now, 'BYSCORE', 'LIMIT', 0, OVERDUE_GROUPS_MAX)
  for _, group in ipairs(overdue) do
    local head = head_of(group)
    if head then
      fail(head, 'the visibility timeout ran out')
    end
    end_delivery(group, now)
  end
end

-- If the handle names the present delivery: the last message of that delivery, and until when the
-- group stays hidden after it.
local function delivery_of(group, sequence, attempt)
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
