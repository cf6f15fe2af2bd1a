-- One page of a partition, read at one moment.
--
-- KEYS: the clock, the index, the prefix of the partition's item keys (a name, not an existing
-- key). ARGV: from and until as ZRANGE takes them, the most items, the bytes after which a page
-- ends.
local sorts = redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, ARGV[3] + 1)
local incarnation, position = point()
local page, bytes, next_sort = {}, 0, false
for place, sort in ipairs(sorts) do
  if place > tonumber(ARGV[3]) or bytes >= tonumber(ARGV[4]) then
    next_sort = sort
    break
  end
  local value = redis.call('GET', KEYS[3] .. sort)
  if value then
    bytes = bytes + #value
    page[#page + 1] = sort
    page[#page + 1] = value
  end
end
return { incarnation, position, page, next_sort }
