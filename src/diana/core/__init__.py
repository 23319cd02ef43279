"""Values and contracts of Diana: standard library only; no clock, no I/O, no async, no HTTP. It imports nothing else of Diana.

contracts          what algorithms, stores, rules backends and observers implement
errors             the tree of errors
drive              runs a generator of steps, with or without `await`
duration           durations as text and in microseconds

limit              so many per unit, or so many at once (`ConcurrencyLimit`)
zero               a limit of 0: every charge is denied
node_share         one node's share of a divided limit
counter            `CounterSpec`: a limit with its name, algorithm and scope; a counter's identity
charge             demands on counters; several of them, all or nothing
decision           the result of one charge on one counter
verdict            the result of all rules for one request
entry_log          the state of an algorithm that needs every moment

request            what rules may read of a request
actor              kinds of identities, and the keys made of them
client_address     the client's address behind trusted proxies
path_readings      every way in which an application may read a path; mounts
url_pattern        urls in rules, and the tree of segments that finds them

rule               one rule: requests, actor, limit
rule_names         what distinguishes rules of one name
rule_summary       what a rule says beside its limit, for commands
allow_lists        `allow`, `only` and `deny`
limit_adjustments  tiers, overrides, and functions of the application that change a limit
matched_rules      the rules that apply to one request
policy             all rules of a file, compiled
settings           the setting `lease`
shed_settings      the setting `shed`: factors and levels
filter_settings    the setting `filters`: what filters of the gateway implement
store_url          what was meant by a store that is not a URL
plain_text         text that is safe to print and to log
"""
