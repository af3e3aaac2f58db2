"""What holds a running server back: readings of its metrics and log, and the tree that names the bottleneck.

readings.py    scrapes of /metrics over some seconds -> one `Readings` a model
log_signs.py   lines of the server's log that mean something
finding.py     what a question is asked with and answers
tree.py        the diagnosis: questions in order, each with its evidence and the next step
decoder_tree.py, encoder_tree.py    the questions for generating models and for encoders
"""
