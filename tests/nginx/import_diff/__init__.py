"""Random configurations: the real nginx beside the rules that `diana import nginx` makes of them.

    configurations.py  a random configuration that nginx accepts
    requests.py        random requests that fit it
    real_nginx.py      nginx, and what it answers to one request after the other
    comparison.py      both side by side: no difference without a note

`make import-diff` compares a thousand; ARGS="--count 100 --seed 7" chooses.
"""
