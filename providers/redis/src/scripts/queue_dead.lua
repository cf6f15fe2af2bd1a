-- ARGV from 3: the most letters, and behind which, if that is there.
if not options() then
  return NO_QUEUE
end
settle()
local letters = {}
local after = redis.call('LPOS', DEAD, ARGV[4])
local from = after and after + 1 or 0
if tonumber(ARGV[3]) > 0 then
  for _, sequence in ipairs(redis.call('LRANGE', DEAD, from, from + ARGV[3] - 1)) do
    letters[#letters + 1] = letter(sequence)
  end
end
return answer(letters)
