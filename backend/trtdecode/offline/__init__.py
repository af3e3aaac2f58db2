"""OpenAI's batch format on the serving loop, without a server: `trtdecode batch`."""
