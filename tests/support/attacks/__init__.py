"""Attacks on a running broker, and a witness that checks the broker's promises meanwhile (scripts/attack.py).

siege.py      a broker, an attack and a witness side by side; what they find is a `Verdict`
witness.py    a well-behaved client: messages, transactions, acknowledgements, and what must be readable of them
outside_witness.py      the same with somebody else's client, without transactions
measures.py   what the broker's process holds: memory, sockets, files, log lines
gauges.py     what the broker says that it holds for clients
attacker.py   the attackers' connections
wire.py, bounds.py, crowds.py, http.py, environment.py, files.py   the attacks, a table in each
table.py      all of them by name
"""
