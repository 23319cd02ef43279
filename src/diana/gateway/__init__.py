"""A reverse proxy with a chain of filters, the limiter first: `diana gateway`.

client ─▶ access log ─▶ limiter ─▶ filters, in the file's order ─▶ proxy ─▶ upstream
                           │          │
                           ╰──────────┴─▶ an answer at once: nothing further right is called
"""
