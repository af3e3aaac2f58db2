"""One model on several ranks: processes that each hold a part of it, driven by the loop as one executor."""
