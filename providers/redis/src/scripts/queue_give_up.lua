-- ARGV from 3: group, sequence, attempt, reason. The message is the first that its consumer has, so the rest of the group is with nobody.
if not options() then
  return NO_QUEUE
end
local group, sequence = ARGV[3], ARGV[4]
if held(group, sequence, ARGV[5]) and head_of(group) == sequence then
  fail(sequence, ARGV[6])
  bury(group, sequence)
  rest(group, now)
end
return answer(0)
