"""What Diana needs of the process that it runs in.

clock              the wall clock, guarded against steps
fork               servers that fork; locks that work in a forked child
background_thread  how a background thread starts, sleeps, pauses after failures, and ends
entry_points       how plug-ins are found
throttled_log      log lines for operators, a limited number per minute
"""
