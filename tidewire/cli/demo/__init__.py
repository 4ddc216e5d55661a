"""`tidewire demo`: the main job, end to end, on real data, against a broker started as a user starts it.

- `command`: what is typed, and whether the machine has what it takes
- `story`: the order of things
- `data`: a year of flights from New York, as events in transactions
- `process`: the broker's process: started, killed, restarted, ended
- `load`: streams the events while the topic splits and the broker dies
- `expected`: the right answer, by pandas, from the files
- `answer`: the answer by Spark, from the broker; what differs
- `report`: what the user sees
"""
