-- What algorithms have in common whose state is one short string.

local function divmod(a, b)
  local rem = a % b
  return (a - rem) / b, rem
end

local function ceil_div(a, b)
  local whole, rem = divmod(a, b)
  return rem > 0 and whole + 1 or whole
end

local function load(key)
  return redis.call("GET", key)
end

local function keep(key, kept, left_us)
  if asking then
    pending = {keep, key, kept, left_us}
    return
  end
  if left_us > 0 then
    redis.call("SET", key, kept, "PX", ttl_ms(left_us))
  else
    redis.call("DEL", key)
  end
end
