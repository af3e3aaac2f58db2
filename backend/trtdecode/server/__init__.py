"""Finding, starting, watching and draining a `tritonserver`: everything around the server, nothing inside the stub
except `control.py`."""
