-- ARGV from 3: the most dead letters, then the number and the sequence of the last one read, or
-- nothing.
if not options() then
  return NO_QUEUE
end
expire_overdue()
local after, after_sequence = tonumber(ARGV[4]) or -1, ARGV[5]

local function is_after(sequence)
  local number = tonumber(number_of_letter(sequence))
  return number > after or number == after and sequence > after_sequence
end

-- Numbers increase along the list, so a binary search finds the first one after it.
local from, to = 0, redis.call('LLEN', DEAD)
while from < to do
  local middle = math.floor((from + to) / 2)
  if is_after(redis.call('LINDEX', DEAD, middle)) then
    to = middle
  else
    from = middle + 1
  end
end
local letters = {}
if tonumber(ARGV[3]) > 0 then
  for _, sequence in ipairs(redis.call('LRANGE', DEAD, from, from + ARGV[3] - 1)) do
    letters[#letters + 1] = letter(sequence)
  end
end
return answer(letters)
