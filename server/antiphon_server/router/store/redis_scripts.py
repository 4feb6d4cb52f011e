"""What Redis runs in one step, in Lua.

Each script gets the prefix of all keys as its only key, so that all are in one slot. Times are milliseconds
of Redis's own clock; callers pass and get durations, as their clocks differ. Below the prefix lie

- ``frontier:<id>``: a hash: d(ata), l(ease), w(orker), e(poch), t(okens), c(onversation), o(wner: a router),
  i(dle since), x (expiry on the engine's clock). It ends with its lease.
- ``worker:<url>``: ``<id>:<tokens>`` by deadline, and ``tokens:<url>``: their sum.
- ``lives:<url>``: epochs of a worker, its present one first.
- ``conversation:<id>``: ids of its frontiers; ``closed:<id>``: when it was closed.
- ``owned:<router>``: ids by deadline; ``routers``: routers by their last sign of life.
"""

from __future__ import annotations

_COMMON = """
local p = KEYS[1]
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = clock()

local function forget(worker, member)
  if redis.call('ZREM', p .. 'worker:' .. worker, member) == 1 then
    redis.call('DECRBY', p .. 'tokens:' .. worker, string.match(member, ':(%d+)$'))
  end
end

local function purge(worker)
  local ended = redis.call('ZRANGEBYSCORE', p .. 'worker:' .. worker, '-inf', now)
  for _, member in ipairs(ended) do forget(worker, member) end
  if redis.call('EXISTS', p .. 'worker:' .. worker) == 0 then
    redis.call('DEL', p .. 'tokens:' .. worker)
  end
end

-- Keys that hold several entries live as long as the longest of them.
local function outlive(key, deadline)
  if redis.call('PTTL', key) < deadline - now then redis.call('PEXPIREAT', key, deadline) end
end

local function keep(id, owner, worker, tokens, deadline)
  local member = id .. ':' .. tokens
  if redis.call('ZADD', p .. 'worker:' .. worker, deadline, member) == 1 then
    redis.call('INCRBY', p .. 'tokens:' .. worker, tokens)
  end
  redis.call('ZADD', p .. 'owned:' .. owner, deadline, id)
  redis.call('PEXPIREAT', p .. 'frontier:' .. id, deadline)
  outlive(p .. 'worker:' .. worker, deadline)
  outlive(p .. 'tokens:' .. worker, deadline)
  outlive(p .. 'owned:' .. owner, deadline)
end

local function drop(id)
  local key = p .. 'frontier:' .. id
  local f = redis.call('HMGET', key, 'w', 't', 'o', 'c')
  if not f[1] then return end
  redis.call('DEL', key)
  forget(f[1], id .. ':' .. f[2])
  redis.call('ZREM', p .. 'owned:' .. f[3], id)
  redis.call('SREM', p .. 'conversation:' .. f[4], id)
end

-- What a reader makes a frontier of; false if there is none, or its engine's life is over.
local function entry(id)
  local key = p .. 'frontier:' .. id
  local f = redis.call('HMGET', key, 'd', 'i', 'x', 'w', 'e')
  if not f[1] then return false end
  local life = redis.call('LINDEX', p .. 'lives:' .. f[4], 0)
  if life and life ~= f[5] then
    drop(id)
    return false
  end
  return {id, f[1], redis.call('PTTL', key), now - f[2], f[3]}
end

local function conversation(name)
  local found = {}
  for _, id in ipairs(redis.call('SMEMBERS', p .. 'conversation:' .. name)) do
    local e = entry(id)
    if e then found[#found + 1] = e else redis.call('SREM', p .. 'conversation:' .. name, id) end
  end
  return found
end

local function held_as(id, lease, worker)
  local f = redis.call('HMGET', p .. 'frontier:' .. id, 'l', 'w')
  return f[1] == lease and f[2] == worker
end
"""

TAKE = (
    _COMMON
    + """
local e = entry(ARGV[1])
drop(ARGV[1])
return e
"""
)

RECORD = (
    _COMMON
    + """
local id, name, owner, lease, worker, epoch, tokens = unpack(ARGV, 1, 7)
local deadline, idle, began = now + ARGV[8], now - ARGV[9], now - ARGV[10]
local life = redis.call('LINDEX', p .. 'lives:' .. worker, 0)
if life and life ~= epoch then return {0, false} end
local closed = redis.call('GET', p .. 'closed:' .. name)
if closed and began <= tonumber(closed) then return {0, false} end
local later = redis.call('HGET', p .. 'frontier:' .. id, 'i')
if later and tonumber(later) > idle then return {0, false} end
local old = entry(id)
drop(id)
purge(worker)
redis.call('HSET', p .. 'frontier:' .. id, 'd', ARGV[12], 'l', lease, 'w', worker, 'e', epoch, 't', tokens,
  'c', name, 'o', owner, 'i', idle, 'x', ARGV[11])
keep(id, owner, worker, tokens, deadline)
redis.call('SADD', p .. 'conversation:' .. name, id)
outlive(p .. 'conversation:' .. name, deadline)
return {1, old}
"""
)

RENEWED = (
    _COMMON
    + """
local id, lease, worker, expiry = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
if not held_as(id, lease, worker) then return 0 end
local f = redis.call('HMGET', p .. 'frontier:' .. id, 'o', 't', 'c')
redis.call('HSET', p .. 'frontier:' .. id, 'x', expiry)
keep(id, f[1], worker, f[2], now + ARGV[4])
outlive(p .. 'conversation:' .. f[3], now + ARGV[4])
return 1
"""
)

REMOVE = (
    _COMMON
    + """
local found = {}
for i = 1, #ARGV, 3 do
  local there = held_as(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  if there then drop(ARGV[i]) end
  found[#found + 1] = there and 1 or 0
end
return found
"""
)

OF = _COMMON + "return conversation(ARGV[1])"

CLOSE = (
    _COMMON
    + """
redis.call('SET', p .. 'closed:' .. ARGV[1], now - ARGV[3], 'PX', ARGV[2])
local found = conversation(ARGV[1])
for _, e in ipairs(found) do drop(e[1]) end
return found
"""
)

FENCE = (
    _COMMON
    + """
local worker, epoch, start, step = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local key = p .. 'lives:' .. worker
local known = false
for _, life in ipairs(redis.call('LRANGE', key, 0, -1)) do known = known or life == epoch end
if not known then
  redis.call('LPUSH', key, epoch)
  redis.call('LTRIM', key, 0, ARGV[5] - 1)
end
redis.call('PEXPIRE', key, ARGV[6])
local members = redis.call('ZRANGE', p .. 'worker:' .. worker, start, start + step - 1)
local kept = 0
for _, member in ipairs(members) do
  if entry(string.match(member, '^(.*):%d+$')) then kept = kept + 1 else forget(worker, member) end
end
return #members < step and -1 or start + kept
"""
)

HELD = (
    _COMMON
    + """
redis.call('ZREMRANGEBYSCORE', p .. 'owned:' .. ARGV[1], '-inf', now)
return redis.call('ZRANGE', p .. 'owned:' .. ARGV[1], 0, -1)
"""
)

READ = (
    _COMMON
    + """
local found = {}
for _, id in ipairs(ARGV) do
  local e = entry(id)
  if e then found[#found + 1] = e end
end
return found
"""
)

TOKENS = (
    _COMMON
    + """
purge(ARGV[1])
return tonumber(redis.call('GET', p .. 'tokens:' .. ARGV[1]) or 0)
"""
)

BEAT = (
    _COMMON
    + """
local router, silence, room = ARGV[1], ARGV[2], tonumber(ARGV[3])
local adopted = {}

local function adopt(id, deadline)
  local e = entry(id)
  if not e then return end
  redis.call('HSET', p .. 'frontier:' .. id, 'o', router)
  redis.call('ZADD', p .. 'owned:' .. router, deadline, id)
  outlive(p .. 'owned:' .. router, tonumber(deadline))
  adopted[#adopted + 1] = e
end

redis.call('ZREM', p .. 'routers', router)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', p .. 'routers', '-inf', now - silence)) do
  local key = p .. 'owned:' .. gone
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  if room > #adopted then
    local orphans = redis.call('ZRANGE', key, 0, room - #adopted - 1, 'WITHSCORES')
    for i = 1, #orphans, 2 do
      redis.call('ZREM', key, orphans[i])
      adopt(orphans[i], orphans[i + 1])
    end
  end
  if redis.call('EXISTS', key) == 0 then redis.call('ZREM', p .. 'routers', gone) end
end
redis.call('ZADD', p .. 'routers', now, router)
return adopted
"""
)

LEAVE = (
    _COMMON
    + """
if redis.call('EXISTS', p .. 'owned:' .. ARGV[1]) == 1 then
  redis.call('ZADD', p .. 'routers', 0, ARGV[1])
else
  redis.call('ZREM', p .. 'routers', ARGV[1])
end
return 1
"""
)
