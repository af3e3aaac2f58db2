"""What holds a running server back: readings of its metrics and log, and the tree that names the bottleneck.

readings.py    scrapes of /metrics over some seconds -> one `Readings` a model
log_signs.py   lines of the server's log that mean something
tree.py        the decision tree: questions in order, each with its evidence and the next step
"""
