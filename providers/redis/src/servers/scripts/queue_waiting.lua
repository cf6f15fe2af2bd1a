-- ARGV from 3: the most messages.
if not options() then
  return NO_QUEUE
end
expire_overdue()
local waiting = {}
for place, member in ipairs(redis.call('ZRANGE', ORDER, '-', '+', 'BYLEX', 'LIMIT', 0, ARGV[3])) do
  waiting[place] = letter(string.sub(member, -16))
end
return answer(waiting)
