-- ARGV from 3: for each handle its group, its sequence, its attempt.
if not options() then
  return NO_QUEUE
end
local removed = 0
for argument = 3, #ARGV - 1, 3 do
  local group, sequence, attempt = ARGV[argument], ARGV[argument + 1], ARGV[argument + 2]
  local last, hidden_until = delivery_of(group, sequence, attempt)
  if last then
    remove_from_group(group, sequence)
    forget(sequence)
    removed = removed + 1
    local head = head_of(group)
    if not head or head > last then
      end_delivery(group, math.max(now, hidden_until))
    end
  end
end
return answer(removed)
