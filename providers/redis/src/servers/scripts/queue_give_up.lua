-- ARGV from 3: group, sequence, attempt, reason. The message is the first of its delivery, so the
-- delivery ends.
if not options() then
  return NO_QUEUE
end
local group, sequence = ARGV[3], ARGV[4]
if delivery_of(group, sequence, ARGV[5]) and head_of(group) == sequence then
  fail(sequence, ARGV[6])
  dead_letter(group, sequence)
  end_delivery(group, now)
end
return answer(0)
