"""Attacks on a running broker, and a witness that holds the broker to its word meanwhile (scripts/attack.py).

siege.py      a broker, an attack and a witness side by side; what they find is a `Verdict`
witness.py    a well-behaved client: messages, transactions, acknowledgements, and what must be readable of them
measures.py   what the broker's process holds: memory, sockets, log lines
enemy.py      the attackers' connections
wire.py, bounds.py, http.py, environment.py, files.py   the attacks, a table in each
    table.py      all of them by name
"""
