"""All rules, by request: what `Guard` and `AsyncGuard` ask.

rule_stores   where the rules of a policy count: here, in the fleet's store, in leases of it
charging      who is asking, for each rule: from a request to charges
dropping      `drop: random`: chance, before anything is asked
judge         what happens, in order, up to the verdict
giving_back   what comes back after it: refunds, charges by outcome, places
"""
