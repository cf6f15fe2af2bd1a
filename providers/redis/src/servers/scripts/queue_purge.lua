-- ARGV from 3: the sequences of dead letters.
if not options() then
  return NO_QUEUE
end
for argument = 3, #ARGV - 1 do
  if redis.call('LREM', DEAD, 1, ARGV[argument]) == 1 then
    forget(ARGV[argument])
    is_changed = true
  end
end
return answer(0)
