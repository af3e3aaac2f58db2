"""Promotion: a model version goes into a served repository only when every gate says yes, and comes back out as easily.

promote.py    the order: lock, gates, publish, cut over, record; any failure leaves the old version serving
gates/        one question each, with evidence and a verdict; their limits are in limits.toml
publish.py    copy beside, verify, fsync, rename
canary.py     the new version under another name in the running server, compared with the one in service
cutover.py    load and unload through Triton's model control, watched until done
record.py     promotion.json, its page, and the history
"""
