"""How a request is evaluated: what `Guard` and `AsyncGuard` have in common.

evaluator           the order of evaluation, from a request to a verdict
charge_builder      from a rule and a request to a charge: match, identify, adjust the limit
rule_stores         where the rules of a policy are counted: locally, in the fleet's store, in leases of it
random_early_drop   `drop: random`
refunds             what is taken back after a verdict: charges, settlements, slots
background_refunds  refunds that no response waits for
peek_plan           what `peek` looks at
observers           who is notified of a verdict, and what numbers an observer reads
limiter_parts       what `Limiter` and `AsyncLimiter` have in common
shared_parts        what evaluators on the same stores share
process_threads     the threads that an evaluator needs in each process
function_errors     what functions of the application raise
override_arguments  the arguments of `guard.override`
slots_after_edit    slots that are held while their rule is edited
"""
