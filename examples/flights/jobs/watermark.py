"""How late events may come, for all jobs.

The watermark is the latest event time of all micro-batches so far, minus this delay. Windows and timers before it are
closed, and events before it are dropped. So the delay must be as long as an event's time can lie before that of an
earlier message in the topic. Here there are three reasons why it does:

- Flights are late. They are sent in the order of their schedule, but depart up to 21.7 hours after it, and land up to
  11 hours later. Some depart up to 43 minutes early.
- An aircraft's day is one transaction, so its evening is in the topic before the mornings of other aircraft.
- Many transactions are open at a time, and they may commit in another order.

In 2013 all three together make 37.1 hours, which a test computes.

The delay does not depend on how often the job runs, or on how much it must catch up. A stream reads all segments of a
topic together, in the order in which the broker stored the messages, also across splits and merges.
"""

WATERMARK_DELAY = "40 hours"
