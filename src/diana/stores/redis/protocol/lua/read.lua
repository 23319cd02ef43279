-- What is there, and what time it is: the first half of a compare-and-swap.
local answer = {redis.call('TIME')}
for place = 1, #KEYS do answer[place + 1] = read_counter(KEYS[place]) end
return answer
