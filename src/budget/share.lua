-- Shares one rate out among replicas. Run by Redis as one step, so no two replicas ever see the same share free.
--
-- KEYS[1]  hash: a field for each replica, and "settling": until when nobody may have more than it brings along
-- ARGV     1 replica   2 its demand, tokens a second   3 the share that it goes by, 0 to 1
--          4 what it finds the brokers to bear in all, tokens a second, or 0   5 lease, ms   6 settling time, ms
--          7 part of the whole that is shared out evenly, whatever the demand
-- Returns  its share, the replicas that are there, what they find the brokers to bear on average (0: nobody does)
--
-- Invariant: the shares of all replicas add up to 1 at most. A share that grows waits until another has come by and
-- has been cut: it is never given twice.
local table_key, replica = KEYS[1], ARGV[1]
local demand, claim, found = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, settling_time, even = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local entries = redis.call('HGETALL', table_key)
local settling = 0
local replicas, all_demand, taken = 1, demand, 0
local weights, weighted = 0, 0
local mine
if found > 0 then
  weights, weighted = demand, demand * found
end
for i = 1, #entries, 2 do
  local name, value = entries[i], entries[i + 1]
  if name == 'settling' then
    settling = tonumber(value) or 0
  else
    local share, wants, seen, finds = string.match(value, '^(%S+) (%S+) (%S+) (%S+)$')
    share, wants, seen, finds = tonumber(share), tonumber(wants), tonumber(seen), tonumber(finds)
    if not (share and wants and seen and finds) or now - seen > lease then
      redis.call('HDEL', table_key, name)
    elseif name == replica then
      mine = share
    else
      replicas = replicas + 1
      all_demand = all_demand + wants
      taken = taken + share
      if finds > 0 then
        weights, weighted = weights + wants, weighted + wants * finds
      end
    end
  end
end

-- A table that was empty may have been wiped: others go by shares that are not in it yet.
if replicas == 1 and not mine then
  settling = now + settling_time
  redis.call('HSET', table_key, 'settling', string.format('%d', settling))
end

local by_demand = 1 / replicas
if all_demand > 0 then
  by_demand = demand / all_demand
end
local share = even / replicas + (1 - even) * by_demand
share = math.min(share, math.max(0, 1 - taken))
if now < settling then
  share = math.min(share, claim)
end

redis.call('HSET', table_key, replica, string.format('%.9f %.3f %d %.3f', share, demand, now, found))
redis.call('PEXPIRE', table_key, lease * 20)

local average = 0
if weights > 0 then
  average = weighted / weights
end
return {string.format('%.9f', share), string.format('%d', replicas), string.format('%.3f', average)}
