-- In how many microseconds there may be something to receive; -1: only after a change.
if not options() then
  return NO_QUEUE
end
settle()
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
