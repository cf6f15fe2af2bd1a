-- The microseconds until a message may be available; -1 if only a change can make one available.
if not options() then
  return NO_QUEUE
end
expire_overdue()
local soonest = -1
for _, key in ipairs({ IDLE, WITH }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then
    local wait = math.max(0, first[2] - now)
    if soonest < 0 or wait < soonest then
      soonest = wait
    end
  end
end
return answer(soonest)
