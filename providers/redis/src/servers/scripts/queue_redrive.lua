-- ARGV from 3: the sequences of dead letters. Each becomes a message again, at the end of its
-- group.
if not options() then
  return NO_QUEUE
end
local last = tonumber(redis.call('HGET', OPTIONS, 'last') or '0')
for argument = 3, #ARGV - 1 do
  local sequence = ARGV[argument]
  if redis.call('LREM', DEAD, 1, sequence) == 1 then
    local message = redis.call('HMGET', MESSAGES, 'g' .. sequence, 'i' .. sequence, 'b' .. sequence)
    forget(sequence)
    last = append(message[1], message[2], message[3], last)
    redis.call('HSET', OPTIONS, 'last', string.format('%.0f', last))
  end
end
return answer(0)
