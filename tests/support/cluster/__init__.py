"""A simulated cluster: several processes of the embedded store on a simulated network, clock and disk.

| module            | what it simulates or does                                                     |
|-------------------|-------------------------------------------------------------------------------|
| `stopping`        | processes that are stopped as by SIGSTOP                                      |
| `network`         | connections that take time, break off, stand still, end one way               |
| `disk_of_process` | one process's view of the disk, which ends or stops at any operation          |
| `nodes`           | the processes, each with the store's own code, and its clients                |
| `commands`        | what a story can tell the cluster to do                                       |
| `transcripts`     | stories: commands, and what each process says                                 |
| `drawing`         | stories drawn from a seed, and the shortest part of one that still fails      |
| `history`         | what clients asked and were told                                              |
| `judging`         | the promises, checked against the log that the disk holds at the end          |
"""
