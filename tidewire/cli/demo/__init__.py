"""`tidewire demo`: an end-to-end run on real data, against a broker started as a user starts it.

- `command`: the command line, and a check of what the machine has installed
- `story`: the order of the steps
- `data`: a year of flights from New York, as events in transactions
- `process`: the broker's process: start, kill, restart, stop
- `cluster`: several brokers instead, run by `tidewire cluster`
- `load`: streams the events while the topic splits and a broker is killed
- `expected`: the right answer, which pandas computes from the files, and a comparison
- `answer`: Spark's answer, from the broker
- `report`: what the user sees
"""
