"""What is measured, one file for each factor; those of plug-ins are found by the entry points `diana.factors`, too.

cpu           percent of the processors
memory        percent of the memory, of the machine and of the process
loop_lag      how late the event loop runs what is ready
inflight      requests in flight in this process
redis_length  the length of a queue in Redis
"""
