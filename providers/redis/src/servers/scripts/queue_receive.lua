-- ARGV from 3: the most messages, the bytes after which a batch ends, by how many microseconds the
-- batch stays hidden beyond its visibility timeout, and that timeout (empty for the queue's own).
if not options() then
  return NO_QUEUE
end
expire_overdue()
local group = redis.call('ZRANGE', IDLE, '-inf', now, 'BYSCORE', 'LIMIT', 0, 1)[1]
if not group or tonumber(ARGV[3]) == 0 then
  return answer({})
end
local count = tonumber(ARGV[3])
-- Before its last attempt a message is delivered alone, so that only the failing message is given
-- up.
if failures_of(head_of(group)) >= math.max(attempts_max - 1, 1) then
  count = 1
end
local batch, bytes, last = {}, 0, nil
for _, sequence in ipairs(sequences(group, count)) do
  local message = redis.call('HMGET', MESSAGES, 'b' .. sequence, 'i' .. sequence, 'f' .. sequence)
  local body, id, failures = message[1], message[2], message[3] or '0'
  bytes = bytes + #body
  if last and bytes > tonumber(ARGV[4]) then
    break
  end
  last = sequence
  local attempt = redis.call('HINCRBY', MESSAGES, 'a' .. sequence, 1)
  batch[#batch + 1] = { group, sequence, attempt, failures, body, id }
end
redis.call('HSET', TAKEN, group, last .. ':0')
redis.call('ZADD', WITH, now + (tonumber(ARGV[6]) or visibility) + ARGV[5], group)
redis.call('ZREM', IDLE, group)
is_changed = true
return answer(batch)
