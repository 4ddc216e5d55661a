"""How late events may come, for all jobs.

A watermark is a promise: behind it nothing comes any more. It is the latest event time of all micro-batches so far,
minus this delay. Windows and timers before it are closed, and events before it are dropped. So the delay has to be as
long as event times go back between one message of the topic and a later one. Here they do for three reasons:

- What happens, happens late. Flights are sent by their schedule, but leave up to 21.7 hours behind it, and land up to
  11 hours later. And some leave early, by up to 43 minutes.
- An aircraft's day is one transaction, so its evening is there before the mornings of others.
- Many transactions are open at a time, and one may be overtaken by others.

In 2013 all three together come to 37.1 hours, which a test computes.

It does not matter how often the job runs, nor how much it has to catch up with: a stream reads all segments of a topic
together, in the order of time in which the broker took the messages, also behind splits and merges.
"""

WATERMARK_DELAY = "40 hours"
