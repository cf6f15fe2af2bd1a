-- How many messages wait or are with a consumer, and how many were given up.
if not options() then
  return NO_QUEUE
end
settle()
return answer({ redis.call('ZCARD', ORDER), redis.call('LLEN', DEAD) })
