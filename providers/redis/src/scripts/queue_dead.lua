-- ARGV from 3: the most letters, and behind which: its number and its sequence, or nothing.
if not options() then
  return NO_QUEUE
end
settle()
local after, after_sequence = tonumber(ARGV[4]) or -1, ARGV[5]

local function is_behind(sequence)
  local number = tonumber(number_of_letter(sequence))
  return number > after or number == after and sequence > after_sequence
end

-- Numbers grow from letter to letter, so the first behind it is found by halves.
local from, to = 0, redis.call('LLEN', DEAD)
while from < to do
  local middle = math.floor((from + to) / 2)
  if is_behind(redis.call('LINDEX', DEAD, middle)) then
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
