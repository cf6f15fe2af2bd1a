-- Compare and set over several keys: if all stamps match, all keys are written; otherwise none is.
--
-- KEYS: the clock, then for each item its key and its partition's index. ARGV: the length of a
-- stamp, then for each item: the expected stamp ('' for an absent item), the write ('c' check, 'n'
-- set and add to the index, 's' set, 't' tombstone, 'd' delete), the bytes, and the sort key. For a
-- tombstone the last one is 'milliseconds:sort key'.
local items = (#KEYS - 1) / 2
for item = 1, items do
  if redis.call('GETRANGE', KEYS[item * 2], 0, ARGV[1] - 1) ~= ARGV[item * 4 - 2] then
    local present = {}
    for other = 1, items do
      present[other] = redis.call('GET', KEYS[other * 2]) or ''
    end
    local incarnation, position = point()
    return { incarnation, position, present }
  end
end
local is_advanced = false
for item = 1, items do
  local key, index = KEYS[item * 2], KEYS[item * 2 + 1]
  local todo, bytes, sort = ARGV[item * 4 - 1], ARGV[item * 4], ARGV[item * 4 + 1]
  if todo ~= 'c' and not is_advanced then
    advance()
    is_advanced = true
  end
  if todo == 's' then
    redis.call('SET', key, bytes)
  elseif todo == 'n' then
    redis.call('SET', key, bytes)
    redis.call('ZADD', index, 0, sort)
  elseif todo == 't' then
    local colon = string.find(sort, ':', 1, true)
    redis.call('SET', key, bytes, 'PX', string.sub(sort, 1, colon - 1))
    redis.call('ZREM', index, string.sub(sort, colon + 1))
  elseif todo == 'd' then
    redis.call('DEL', key)
    redis.call('ZREM', index, sort)
  end
end
local incarnation, position = point()
return { incarnation, position }
