-- The number of messages that wait or are with a consumer, and the number of dead letters.
if not options() then
  return NO_QUEUE
end
expire_overdue()
return answer({ redis.call('ZCARD', ORDER), redis.call('LLEN', DEAD) })
