"""Real servers for the tests, and the tools that break them and count what survived.

`postgres` and `kafka` run the real thing from local binaries; `proxy` stands between the relay and a server
and misbehaves on request; `relay` is the relay as its users run it; `ledger` keeps account of what was
committed and what arrived. Everything that they start ends with the tests, however those end.
"""
