-- ARGV from 3: the most letters.
if not options() then
  return NO_QUEUE
end
settle()
local letters = {}
if tonumber(ARGV[3]) > 0 then
  for _, sequence in ipairs(redis.call('LRANGE', DEAD, 0, ARGV[3] - 1)) do
    letters[#letters + 1] = letter(sequence)
  end
end
return answer(letters)
